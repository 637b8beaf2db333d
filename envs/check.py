"""Check that an environment is sound before a run pays for it.

Takes an environment and some options, returns what is wrong with it; an empty list is a pass. What
needs a grader is in `rewards/check.py`.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from envs.config import EnvironmentConfig
from envs.environment import EnvironmentSpec, Expert, Split
from envs.episode import Episode, StopReason
from envs.messages import JsonValue, Message, Role, ToolCall
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong with an environment."""

    rule: str
    """What should hold, as a short sentence."""
    detail: str
    """Where it does not, in one line."""


async def check_environment(
    spec: EnvironmentSpec,
    section: EnvironmentConfig | None = None,
    num_tasks: int = 8,
) -> list[Finding]:
    """Check an environment's tools and tasks, and play some episodes without a model.

    Args:
        spec: The environment.
        section: Its section in a configuration: options of its task set, or a file of tasks.
        num_tasks: Tasks of each split to play.

    Returns:
        Findings, the most basic ones first; where the tasks cannot be made, only these.
    """
    findings = _check_tools(spec)
    try:
        tasks = {split: list_tasks(spec, section or EnvironmentConfig(), split) for split in Split}
        chosen = [
            [(world_of(spec, task), task) for task in choose_tasks(tasks[split], num_tasks)]
            for split in Split
        ]
    except ValueError as error:
        return [*findings, Finding(rule="tasks can be made", detail=str(error))]
    findings += _check_task_lists(tasks)
    for world, task in chain.from_iterable(chosen):
        findings += await _check_play(world, task)
    if not findings:
        for world, task in chain.from_iterable(part[:1] for part in chosen):
            findings += await _check_calls(world, task)
    return findings


def world_of(spec: EnvironmentSpec, task: Task) -> EnvironmentSpec:
    """Return the environment that a task names: those of a file may name others than `spec`.

    Raises:
        ValueError: it cannot be loaded.
    """
    return spec if task.environment == spec.name else load_environment(task.environment)


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


def _check_tools(spec: EnvironmentSpec) -> list[Finding]:
    try:
        tools = tool_specs(spec.environment)
    except ValueError as error:
        return [Finding(rule="tools have types that a policy can write", detail=str(error))]
    findings = []
    if not tools:
        findings.append(Finding(rule="there is a tool", detail=spec.name))
    for tool in tools:
        if not tool.description:
            findings.append(Finding(rule="each tool has a docstring", detail=tool.name))
        findings += [
            Finding(
                rule="each parameter is described under Args",
                detail=f"{tool.name}({parameter.name})",
            )
            for parameter in tool.parameters
            if not parameter.description
        ]
    return findings


def _check_task_lists(tasks: Mapping[Split, Sequence[Task]]) -> list[Finding]:
    findings = [
        Finding(rule="each split has tasks", detail=str(split))
        for split in Split
        if not tasks[split]
    ]
    ids = {split: [task.id for task in tasks[split]] for split in Split}
    for split in Split:
        twice = [task_id for task_id, count in Counter(ids[split]).items() if count > 1]
        if twice:
            findings.append(Finding(rule="task ids are unique", detail=f"{split}: {twice[0]}"))
    shared = sorted(set(ids[Split.TRAIN]) & set(ids[Split.HELD_OUT]))
    if shared:
        findings.append(Finding(rule="the splits share no task", detail=shared[0]))
    return findings


async def _check_play(spec: EnvironmentSpec, task: Task) -> list[Finding]:
    """Play a task twice with the same actions: it must not break, and it must not change."""
    episodes = []
    for _ in range(2):
        policy = replay(episodes[0]) if episodes else _first_policy(spec, task)
        episodes.append(await play(spec, task, policy))
        if episodes[-1].stop is StopReason.ENVIRONMENT_ERROR:
            detail = f"{task.id}: {episodes[-1].error}"
            return [Finding(rule="the environment does not break", detail=detail)]
    first, second = episodes
    if first.messages[0] != second.messages[0]:
        return [Finding(rule="the same task opens with the same text", detail=task.id)]
    if (first.messages, first.artifacts) != (second.messages, second.artifacts):
        return [Finding(rule="the same actions give the same replies", detail=task.id)]
    return []


async def _check_calls(spec: EnvironmentSpec, task: Task) -> list[Finding]:
    """Call each tool in an episode of its own: whatever a policy asks, the world must not break.

    The arguments have the right types and no sense; `ToolError` is a reply like any other.
    """
    findings = []
    for tool in tool_specs(spec.environment):
        arguments = {parameter.name: EXAMPLES[parameter.type] for parameter in tool.parameters}
        call = ToolCall(name=tool.name, arguments=arguments)
        action = Message(role=Role.POLICY, tool_calls=(call,))
        episode = await play(spec, task, lambda _, action=action: action, max_turns=1)
        if episode.stop is StopReason.ENVIRONMENT_ERROR:
            detail = f"{task.id}: called with {arguments}: {episode.error}"
            findings.append(Finding(rule="the environment does not break", detail=detail))
    return findings


def _first_policy(spec: EnvironmentSpec, task: Task) -> Expert:
    return spec.expert(task, random.Random(0)) if spec.expert else say_nothing
