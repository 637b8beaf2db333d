"""The `hidden_tests` grader: does the submitted function give the right values?

Takes an episode whose artifact `code` defines a function, returns 1 where every hidden test passes
and 0 otherwise. The function runs in a fresh sandbox that the episode never touched; only inputs
go in and only plain values come out. They are compared here, where no submitted line ever runs.
"""

from collections.abc import Sequence
from typing import Any, cast

from envs.episode import Episode
from envs.function_calls import call_function, is_same_value
from envs.sandbox import SandboxError, SandboxLimits
from rewards.reward import Blame, Invalid, Outcome, Scored

LIMITS = SandboxLimits(wall_seconds=10.0)
"""Wall time is generous: a busy machine must not cost a right function its score."""


async def grade(episode: Episode) -> Outcome:
    """Grade an episode.

    Args:
        episode: Artifact `code`: the submitted text. Reference `function`: its name;
            `hidden_tests`: pairs of input and expected value.

    Returns:
        Scored 1 or 0; its part `tests_passed` is the share of the tests. Invalid where the sandbox
        failed.
    """
    code = episode.artifacts.get("code")
    if not isinstance(code, str) or not code:
        return Scored(value=0.0, parts={"tests_passed": 0.0})
    reference = episode.task.reference
    tests = cast("Sequence[Sequence[Any]]", reference["hidden_tests"])
    try:
        results = await call_function(
            code, str(reference["function"]), [value for value, _ in tests], LIMITS
        )
    except SandboxError as error:
        return Invalid(reason="sandbox_failed", blame=Blame.INFRASTRUCTURE, detail=str(error))
    passed = [
        result.error is None and is_same_value(result.value, expected)
        for result, (_, expected) in zip(results, tests, strict=True)
    ]
    return Scored(value=float(all(passed)), parts={"tests_passed": sum(passed) / len(passed)})
