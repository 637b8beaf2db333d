"""What a check of an environment is, what it is given, and how checks run.

A check is one function: it gets a `Subject` and returns what is wrong, one line each; none is a
pass. One that builds on others is skipped where they failed, so that a fault has one name. The
checks themselves are in `check_contract.py` (what an environment promises) and
`check_hardship.py` (what a run does to it); those of graders are in `rewards/check.py`, those of
tokens in `rollout/check.py`.
"""

import asyncio
import logging
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from envs.config import EnvironmentConfig
from envs.environment import EnvironmentSpec, Expert, Split, takes_text
from envs.episode import Episode
from envs.messages import JsonValue, Message, Role, ToolCall, ToolParameter
from envs.play import play
from envs.registry import load_environment
from envs.task import Task
from envs.task_sets import list_tasks
from envs.tools import tool_specs

EXAMPLES: Mapping[str, JsonValue] = {
    "string": "example",
    "integer": 1,
    "number": 1.0,
    "boolean": True,
    "array": [],
    "object": {},
}
"""An argument of every type that a policy can write."""
CHECK_TIMEOUT_SECONDS = 300.0
"""A check that takes longer has found something that hangs."""

_log = logging.getLogger(__name__)


class Verdict(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """It builds on one that failed, or there is nothing to check."""


class Skip(Exception):  # noqa: N818 (no error: the check has nothing to look at)
    """There is nothing to check; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLimits:
    """How much a check may ask of an environment."""

    num_tasks: int = 8
    """Tasks of each split to play."""
    max_turns: int = 32
    """Policy messages in an episode, at most."""
    reset_seconds: float = 30.0
    """`reset` and `close` must answer within these."""
    cancel_seconds: float = 2.0
    """A cancelled tool has this long to end."""
    grader_seconds: float = 60.0
    """A grader that takes longer has failed."""
    expert_attempts: int = 64
    """An expert may fail at times; one that never succeeds in these shows no solution. One that
    succeeds one time in five is missed once in 10^6 tasks."""
    leak_episodes: int = 50
    """Episodes after which nothing may have piled up."""
    leak_seconds: float = 30.0
    """Fewer episodes where they take longer."""


class Subject:
    """What is checked: an environment, its section, and the tasks that are played."""

    def __init__(
        self, spec: EnvironmentSpec, section: EnvironmentConfig, limits: CheckLimits
    ) -> None:
        """Hold no task yet: `load` lists them."""
        self.spec = spec
        self.section = section
        self.limits = limits
        self.tasks: dict[Split, list[Task]] = {}
        self.chosen: list[tuple[EnvironmentSpec, Task]] = []
        """The tasks to play, each with its environment: those of a file may name others."""
        self.process = (Path.cwd(), dict(os.environ), list(sys.path))
        """Working folder, variables and import path before any episode."""
        self._episodes: dict[str, Episode] = {}

    def load(self) -> None:
        """List the tasks and choose some of each split.

        Raises:
            ValueError: they cannot be made.
        """
        for split in Split:
            self.tasks[split] = list_tasks(self.spec, self.section, split)
            for task in choose_tasks(self.tasks[split], self.limits.num_tasks):
                self.chosen.append((self._world_of(task), task))

    async def episode(self, spec: EnvironmentSpec, task: Task) -> Episode:
        """Return the task's first episode, by the expert or by a policy that tries each tool."""
        if task.id not in self._episodes:
            self._episodes[task.id] = await self.play(spec, task, first_policy(spec, task))
        return self._episodes[task.id]

    async def actions(self, spec: EnvironmentSpec, task: Task) -> list[Message]:
        """Return the policy's messages of the task's first episode that can be answered."""
        messages = (await self.episode(spec, task)).messages
        is_text_game = takes_text(spec.environment)
        return [
            message
            for message in messages
            if message.role is Role.POLICY and (message.tool_calls or is_text_game)
        ]

    async def replay(self, spec: EnvironmentSpec, task: Task) -> Episode:
        """Play the actions of the task's first episode again."""
        return await self.play(spec, task, replay(await self.episode(spec, task)))

    async def play(self, spec: EnvironmentSpec, task: Task, policy: Expert) -> Episode:
        """Play an episode within the limits of the section."""
        return await play(
            spec,
            task,
            policy,
            max_turns=self.limits.max_turns,
            tool_timeout_seconds=self.section.tool_timeout_seconds,
            max_tool_characters=self.section.max_tool_characters,
        )

    def _world_of(self, task: Task) -> EnvironmentSpec:
        if task.environment in (self.spec.name, self.section.use):
            return self.spec
        return load_environment(task.environment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One property of a sound environment."""

    name: str
    rule: str
    """What should hold, as a short sentence."""
    find: Callable[[Subject], Awaitable[Sequence[str]]]
    """Returns where it does not, one line each; raises `Skip` where there is nothing to check."""
    needs: tuple[str, ...] = ()
    """Checks without which this one says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What a check said."""

    name: str
    rule: str
    verdict: Verdict
    details: tuple[str, ...] = ()
    """Where the rule does not hold, or why it was not looked at."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Soundness:
    """What all checks said of one environment."""

    results: tuple[CheckResult, ...]
    num_tasks: int
    seconds: float

    @property
    def failures(self) -> list[CheckResult]:
        """Checks that failed."""
        return [result for result in self.results if result.verdict is Verdict.FAILED]

    @property
    def badge(self) -> str:
        """One line: `sound: 25 checks, 8 tasks, 3.2 s`."""
        counts = {
            verdict: sum(result.verdict is verdict for result in self.results)
            for verdict in Verdict
        }
        skipped = f" ({counts[Verdict.SKIPPED]} skipped)" if counts[Verdict.SKIPPED] else ""
        tail = f"{self.num_tasks} tasks, {self.seconds:.1f} s"
        if counts[Verdict.FAILED]:
            names = ", ".join(result.name for result in self.failures)
            return f"unsound: {names}; {counts[Verdict.PASSED]} checks passed{skipped}, {tail}"
        return f"sound: {counts[Verdict.PASSED]} checks{skipped}, {tail}"


async def run_checks(subject: Subject, checks: Sequence[Check]) -> Soundness:
    """Run checks in their order.

    Args:
        subject: The environment.
        checks: Each after those it needs.

    Returns:
        One result per check.
    """
    started = time.perf_counter()
    results: dict[str, CheckResult] = {}
    for check in checks:
        missing = [
            name
            for name in check.needs
            if name in results and results[name].verdict is not Verdict.PASSED
        ]
        results[check.name] = (
            _result(check, Verdict.SKIPPED, [f"needs {missing[0]}"])
            if missing
            else await _run(subject, check)
        )
    return Soundness(
        results=tuple(results.values()),
        num_tasks=len(subject.chosen),
        seconds=time.perf_counter() - started,
    )


async def _run(subject: Subject, check: Check) -> CheckResult:
    started = time.perf_counter()
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_SECONDS):
            details = await check.find(subject)
    except Skip as skip:
        return _result(check, Verdict.SKIPPED, [str(skip)])
    except TimeoutError:
        details = [f"not done after {CHECK_TIMEOUT_SECONDS:g} s"]
    except (Exception, SystemExit) as error:  # an expert, too, is foreign code
        _log.info("the check %s raised", check.name, exc_info=error)
        details = [" ".join(f"{type(error).__name__}: {error}".split())[:300]]
    verdict = Verdict.FAILED if details else Verdict.PASSED
    return _result(check, verdict, details, time.perf_counter() - started)


def _result(
    check: Check, verdict: Verdict, details: Sequence[str], seconds: float = 0.0
) -> CheckResult:
    return CheckResult(
        name=check.name,
        rule=check.rule,
        verdict=verdict,
        details=tuple(details),
        seconds=seconds,
    )


def choose_tasks(tasks: Sequence[Task], num_tasks: int) -> list[Task]:
    """Choose tasks spread evenly over the list."""
    step = max(1, len(tasks) // max(1, num_tasks))
    return list(tasks[::step][:num_tasks])


def say_nothing(messages: Sequence[Message]) -> Message:
    """Play the policy that calls no tool."""
    del messages
    return Message(role=Role.POLICY)


def replay(episode: Episode) -> Expert:
    """Play the policy messages of an earlier episode again, whatever the replies are."""
    actions = iter([message for message in episode.messages if message.role is Role.POLICY])
    return lambda _: next(actions, Message(role=Role.POLICY))


def first_policy(spec: EnvironmentSpec, task: Task) -> Expert:
    """Return the expert, or a policy that tries each tool once where there is none."""
    if spec.expert is not None:
        return spec.expert(task, random.Random(0))
    return play_actions(example_actions(spec))


def play_actions(actions: Sequence[Message]) -> Expert:
    """Play some messages in their order, and then none."""
    rest = iter(actions)
    return lambda _: next(rest, Message(role=Role.POLICY))


def example_actions(spec: EnvironmentSpec) -> list[Message]:
    """Return one call of each tool, with arguments of the right types and no sense."""
    actions = [
        Message(role=Role.POLICY, tool_calls=(call,)) for call in example_calls(spec, EXAMPLES)
    ]
    if takes_text(spec.environment):
        actions.append(Message(role=Role.POLICY, text="example"))
    return actions


def example_calls(spec: EnvironmentSpec, examples: Mapping[str, JsonValue]) -> Iterator[ToolCall]:
    """Yield one call of each tool, its arguments by type."""
    for tool in tool_specs(spec.environment):
        arguments = {item.name: example_of(item, examples) for item in tool.parameters}
        yield ToolCall(name=tool.name, arguments=arguments)


def example_of(parameter: ToolParameter, examples: Mapping[str, JsonValue]) -> JsonValue:
    """Return an argument that a parameter takes."""
    return parameter.choices[0] if parameter.choices else examples[parameter.type]
