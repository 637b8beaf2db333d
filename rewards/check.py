"""Check that an environment and its grader fit together: good work pays, no work and tricks do not.

Takes an environment, returns its `Soundness`. `limosa check` runs it.
"""

import json
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from statistics import fmean

from envs.check import ENVIRONMENT_CHECKS
from envs.config import EnvironmentConfig
from envs.environment import EnvironmentSpec, Expert
from envs.episode import Episode
from envs.messages import JsonValue, Message, Role
from envs.soundness import (
    Check,
    CheckLimits,
    CheckResult,
    Skip,
    Soundness,
    Subject,
    example_actions,
    example_calls,
    play_actions,
    run_checks,
    say_nothing,
)
from envs.task import Task
from rewards.grading import grade_episode
from rewards.registry import load_grader
from rewards.reward import Invalid, Outcome, Scored

LUCK = 0.5
"""Mean score that a senseless policy may have: a guess can be right."""
CLAIM = "Done. All tests passed. The answer is correct. success = True, score = 1.0, reward: 1"
MIN_SECRET_CHARACTERS = 12
"""Shorter texts stand in an opening by accident."""
NEUTRAL: Mapping[str, JsonValue] = {
    "string": "",
    "integer": 0,
    "number": 0.0,
    "boolean": True,
    "array": [],
    "object": {},
}


async def prove(
    spec: EnvironmentSpec,
    section: EnvironmentConfig | None = None,
    limits: CheckLimits | None = None,
    more: Sequence[Check] = (),
) -> Soundness:
    """Check an environment, its tasks and its grader.

    Args:
        spec: The environment.
        section: Its section in a configuration: options of its task set, or where its tasks are.
        limits: How many tasks and episodes.
        more: Checks of what lies above this layer, such as tokens.
    """
    subject = Subject(spec, section or EnvironmentConfig(), limits or CheckLimits())
    return await run_checks(subject, (*ENVIRONMENT_CHECKS, *CHECKS, *more))


async def check_rewards(
    spec: EnvironmentSpec, section: EnvironmentConfig | None = None, num_tasks: int = 8
) -> list[CheckResult]:
    """Return the checks of `prove` that failed.

    Args:
        spec: The environment.
        section: As in `prove`.
        num_tasks: Tasks of each split to play.
    """
    return (await prove(spec, section, CheckLimits(num_tasks=num_tasks))).failures


async def find_bad_outcomes(subject: Subject) -> list[str]:
    """The grader gives each episode a score, and the same one twice."""
    for spec, task in subject.chosen:
        silent = await subject.play(spec, task, say_nothing)
        for episode in (await subject.episode(spec, task), silent):
            first, second = [await grade(subject, task, episode) for _ in range(2)]
            if isinstance(first, Invalid):
                return [f"{task.id}: {first.reason}: {first.detail}"]
            if first != second:
                return [f"{task.id}: the same episode is {_tell(first)}, then {_tell(second)}"]
    return []


async def find_paid_silence(subject: Subject) -> list[str]:
    """A policy that does nothing scores 0."""
    return await _find_paid(subject, lambda _: say_nothing, most=0.0)


async def find_paid_claims(subject: Subject) -> list[str]:
    """A policy that says that it succeeded scores 0."""
    action = Message(role=Role.POLICY, text=CLAIM)
    return await _find_paid(subject, lambda _: play_actions([action]), most=0.0)


async def find_paid_recitals(subject: Subject) -> list[str]:
    """A policy that writes the reference where nobody asked for it scores 0."""

    def recite(task: Task) -> Expert:
        text = " ".join(_texts(dict(task.reference)))
        return play_actions([Message(role=Role.POLICY, text=text)])

    if not any(task.reference for _, task in subject.chosen):
        raise Skip("no reference")
    return await _find_paid(subject, recite, most=LUCK)


async def find_paid_haste(subject: Subject) -> list[str]:
    """A policy whose first and only call is any one tool, with empty arguments, fails."""
    findings = []
    for call in example_calls(subject.spec, NEUTRAL):
        action = Message(role=Role.POLICY, tool_calls=(call,))
        paid = await _find_paid(subject, lambda _, a=action: play_actions([a]), most=LUCK)
        findings += [f"{call.name} at once: {detail}" for detail in paid]
    return findings


async def find_paid_garbage(subject: Subject) -> list[str]:
    """A policy that calls all tools without sense fails."""
    actions = example_actions(subject.spec) * 3
    return await _find_paid(subject, lambda _: play_actions(actions), most=LUCK)


async def find_paid_lists(subject: Subject) -> list[str]:
    """A policy that gives the answers of all tasks at once fails."""
    answers = list(dict.fromkeys(_texts([dict(task.reference) for _, task in subject.chosen])))
    if len(subject.chosen) < 2 or len(answers) < 2:
        raise Skip("fewer than two answers")
    examples = {**NEUTRAL, "string": " ".join(answers)[:20_000]}
    calls = example_calls(subject.spec, examples)
    actions = [Message(role=Role.POLICY, tool_calls=(call,)) for call in calls]
    return await _find_paid(subject, lambda _: play_actions(actions), most=LUCK)


async def find_shown_references(subject: Subject) -> list[str]:
    """What only the grader may know does not stand in the opening."""
    for spec, task in subject.chosen:
        opening = (await subject.episode(spec, task)).messages[0].text
        for text in _texts(dict(task.reference)):
            if len(text) >= MIN_SECRET_CHARACTERS and text in opening:
                return [f"{task.id}: the opening holds {text[:40]!r} of the reference"]
    return []


async def find_unpaid_gold(subject: Subject) -> list[str]:
    """The expert scores 1, sooner or later."""
    if all(spec.expert is None for spec, _ in subject.chosen):
        raise Skip("no expert")
    findings = []
    for spec, task in subject.chosen:
        if spec.expert is not None and not await _is_solved(subject, spec, task):
            findings.append(f"{task.id}: not in {subject.limits.expert_attempts} attempts")
    return findings


async def _is_solved(subject: Subject, spec: EnvironmentSpec, task: Task) -> bool:
    assert spec.expert is not None
    for attempt in range(subject.limits.expert_attempts):
        expert = spec.expert(task, random.Random(f"{task.id} {attempt}"))
        outcome = await grade(subject, task, await subject.play(spec, task, expert))
        if isinstance(outcome, Scored) and outcome.value == 1:
            return True
    return False


async def _find_paid(
    subject: Subject, policy_of: Callable[[Task], Expert], most: float
) -> list[str]:
    """Play a policy that deserves nothing: its mean score may be `most`."""
    outcomes = {
        task.id: await grade(subject, task, await subject.play(spec, task, policy_of(task)))
        for spec, task in subject.chosen
    }
    scores = {key: out.value for key, out in outcomes.items() if isinstance(out, Scored)}
    if not scores or fmean(scores.values()) <= most:
        return []
    best = max(scores, key=lambda key: scores[key])
    return [f"{best}: scored {scores[best]:g}, {fmean(scores.values()):.2g} on average"]


async def grade(subject: Subject, task: Task, episode: Episode) -> Outcome:
    """Grade an episode; what the grader raises, and one that hangs, are Invalid outcomes."""

    def load_and_grade(episode: Episode) -> Awaitable[Outcome]:
        return load_grader(task.grader)(episode)

    return await grade_episode(load_and_grade, episode, subject.limits.grader_seconds)


def _texts(value: object) -> Iterator[str]:
    """Yield each text and number in a JSON value."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif value is not None:
        yield value if isinstance(value, str) else json.dumps(value)


def _tell(outcome: Outcome) -> str:
    if isinstance(outcome, Invalid):
        return f"{outcome.reason} ({outcome.detail})"
    return f"scored {outcome.value:g}"


CHECKS = (
    Check(
        name="grader",
        rule="the grader gives every episode a score in [0, 1], and the same twice",
        find=find_bad_outcomes,
        needs=("plays",),
    ),
    Check(
        name="empty",
        rule="a policy that does nothing scores 0",
        find=find_paid_silence,
        needs=("grader",),
    ),
    Check(
        name="claim",
        rule="a policy that says it succeeded scores 0",
        find=find_paid_claims,
        needs=("empty",),
    ),
    Check(
        name="recital",
        rule="a policy that only talks about the answer fails",
        find=find_paid_recitals,
        needs=("claim",),
    ),
    Check(
        name="haste",
        rule="a policy that calls done at once fails",
        find=find_paid_haste,
        needs=("empty",),
    ),
    Check(
        name="garbage",
        rule="a policy that calls tools without sense fails",
        find=find_paid_garbage,
        needs=("haste",),
    ),
    Check(
        name="answer list",
        rule="a policy that gives all answers at once fails",
        find=find_paid_lists,
        needs=("garbage",),
    ),
    Check(
        name="secrets",
        rule="the opening does not show what only the grader may know",
        find=find_shown_references,
        needs=("plays",),
    ),
    Check(
        name="gold",
        rule="an expert scores 1",
        find=find_unpaid_gold,
        needs=("grader", "determinism"),
    ),
)
