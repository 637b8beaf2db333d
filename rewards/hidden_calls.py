"""The `hidden_calls` grader: does a function in the submitted files give the right values?

Like `hidden_tests`, for files instead of one text and for keyword arguments. The files are written
in a fresh sandbox that the episode never touched; only arguments go in and only plain values come
out. They are compared here, where no submitted line ever runs.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from envs.bundle import CALL, bundle
from envs.episode import Episode
from envs.function_calls import call_function, is_same_value
from envs.messages import JsonValue
from envs.sandbox import SandboxError, SandboxLimits
from rewards.reward import Blame, Invalid, Outcome, Scored

LIMITS = SandboxLimits(wall_seconds=15.0, cpu_seconds=4)
"""Wall time is generous: a busy machine must not cost a right function its score."""


async def grade(episode: Episode) -> Outcome:
    """Grade an episode.

    Args:
        episode: Artifact `files`: relative path to text. Reference `target`: what is called,
            `module:function`; `hidden_tests`: pairs of arguments by name and the expected value.

    Returns:
        Scored 1 or 0; its part `tests_passed` is the share of the tests. Invalid where the sandbox
        failed.
    """
    reference = episode.task.reference
    tests = cast("Sequence[Sequence[Any]]", reference["hidden_tests"])
    try:
        program = bundle(
            _read_files(episode.artifacts.get("files")),
            *str(reference["target"]).split(":"),
        )
        results = await call_function(program, CALL, [value for value, _ in tests], LIMITS)
    except ValueError:  # the submission is not one: the policy's own doing
        return Scored(value=0.0, parts={"tests_passed": 0.0})
    except SandboxError as error:
        return Invalid(reason="sandbox_failed", blame=Blame.INFRASTRUCTURE, detail=str(error))
    passed = [
        result.error is None and is_same_value(result.value, expected)
        for result, (_, expected) in zip(results, tests, strict=True)
    ]
    return Scored(value=float(all(passed)), parts={"tests_passed": sum(passed) / len(passed)})


def _read_files(artifact: JsonValue) -> dict[str, str]:
    """Read the submitted files.

    Raises:
        ValueError: there are none, or one is no text.
    """
    if not isinstance(artifact, Mapping) or not artifact:
        raise ValueError("no files are submitted")
    files = {path: text for path, text in artifact.items() if isinstance(text, str)}
    if len(files) != len(artifact):
        raise ValueError("a submitted file is no text")
    return files
