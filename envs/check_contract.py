"""Checks of what an environment promises: tools, tasks, and episodes that can be played again."""

import asyncio
import json
import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from envs.environment import (
    EnvironmentFailure,
    EnvironmentSpec,
    Split,
    collect_artifacts,
    end_episode,
    is_done,
    restore_snapshot,
    start_episode,
    take_snapshot,
    takes_text,
)
from envs.episode import Episode, StopReason
from envs.messages import Message, Role
from envs.play import answer_action
from envs.soundness import EXAMPLES, Check, Skip, Subject, example_calls, play_actions
from envs.task import Task
from envs.tools import call_tool, tool_specs


async def find_bad_tools(subject: Subject) -> list[str]:
    """There is a tool or `step`; types, docstrings and argument help are there."""
    try:
        tools = tool_specs(subject.spec.environment)
    except ValueError as error:
        return [str(error)]
    except (NameError, TypeError) as error:  # a hint that does not resolve
        return [f"a type cannot be read: {error}"]
    findings = []
    if not tools and not takes_text(subject.spec.environment):
        findings.append("there is no tool, and no step for plain text")
    for tool in tools:
        if not tool.description:
            findings.append(f"{tool.name} has no docstring")
        findings += [
            f"{tool.name}({parameter.name}) is not described under Args"
            for parameter in tool.parameters
            if not parameter.description
        ]
    return findings


async def find_bad_tasks(subject: Subject) -> list[str]:
    """Tasks can be made, in both splits; ids are given once."""
    try:
        subject.load()
    except ValueError as error:
        return [str(error)]
    findings = [f"the split {split} has no task" for split in Split if not subject.tasks[split]]
    ids = {split: [task.id for task in subject.tasks[split]] for split in Split}
    for split in Split:
        twice = [task_id for task_id, count in Counter(ids[split]).items() if count > 1]
        if twice:
            findings.append(f"{split}: the id {twice[0]} is given twice")
    shared = sorted(set(ids[Split.TRAIN]) & set(ids[Split.HELD_OUT]))
    if shared:
        findings.append(f"the splits share the task {shared[0]}")
    return findings


async def find_late_answers(subject: Subject) -> list[str]:
    """`reset`, each tool and `close` answer in time."""
    spec, task = subject.chosen[0]
    seconds = subject.limits.reset_seconds
    try:
        environment, _ = await start_episode(spec, task, seconds)
    except EnvironmentFailure as failure:
        return [str(failure)] if "took longer than" in str(failure) else []
    findings = []
    limit = subject.section.tool_timeout_seconds
    for call in example_calls(spec, EXAMPLES):
        try:
            reply = await call_tool(environment, call, limit)
        except EnvironmentFailure:
            continue  # it answered; what it answered is another check's business
        if reply == f"error: {call.name} took longer than {limit:g} s":
            findings.append(f"{call.name} took longer than tool_timeout_seconds = {limit:g}")
    for hook in (is_done, collect_artifacts, end_episode):
        try:
            async with asyncio.timeout(seconds):
                await hook(environment)
        except EnvironmentFailure:
            continue
        except TimeoutError:
            findings.append(f"{hook.__name__} took longer than {seconds:g} s")
    return findings


async def find_broken_episodes(subject: Subject) -> list[str]:
    """No episode of the chosen tasks breaks, nor one that calls any single tool."""
    findings = []
    for spec, task in subject.chosen:
        episode = await subject.episode(spec, task)
        if episode.stop is StopReason.ENVIRONMENT_ERROR:
            return [f"{task.id}: {episode.error}"]
    spec, task = subject.chosen[0]
    for call in example_calls(spec, EXAMPLES):
        action = Message(role=Role.POLICY, tool_calls=(call,))
        episode = await subject.play(spec, task, play_actions([action]))
        if episode.stop is StopReason.ENVIRONMENT_ERROR:
            arguments = dict(call.arguments)
            findings.append(f"{task.id}: called with {arguments}: {episode.error}")
    return findings


async def find_unrecordable(subject: Subject) -> list[str]:
    """Tasks and episodes go through JSON and pickle, and come back equal."""
    for spec, task in subject.chosen:
        episode = await subject.episode(spec, task)
        for name, value in (("data", task.data), ("reference", task.reference)):
            try:
                if json.loads(json.dumps(value)) != value:
                    return [f"{task.id}: {name} is not the same after JSON"]
            except (TypeError, ValueError) as error:
                return [f"{task.id}: {name} is no JSON: {error}"]
        try:
            if pickle.loads(pickle.dumps(episode)) != episode:
                return [f"{task.id}: its episode is not the same after pickling"]
        except Exception as error:  # pickle raises whatever the objects do
            return [f"{task.id}: its episode cannot be pickled: {error}"]
    return []


async def find_changes(subject: Subject) -> list[str]:
    """The same task and actions give the same episode, one right after the other.

    The first of three only puts the task before: what another one left is another check's matter.
    """
    for spec, task in subject.chosen:
        _, first, second = [await subject.replay(spec, task) for _ in range(3)]
        difference = tell_difference(first, second)
        if difference:
            return [f"{task.id}: {difference}"]
    return []


async def find_left_overs(subject: Subject) -> list[str]:
    """An episode is the same whatever task was played before it."""
    for (spec, task), (other_spec, other) in pairwise(subject.chosen):
        alone = [await subject.replay(spec, task) for _ in range(2)][1]
        await subject.replay(other_spec, other)
        after = await subject.replay(spec, task)
        difference = tell_difference(alone, after)
        if difference:
            return [f"{task.id} after {other.id}: {difference}"]
    if len(subject.chosen) < 2:
        raise Skip("one task alone")
    return []


async def find_moody_hooks(subject: Subject) -> list[str]:
    """`done`, `artifacts` and the reward are the same when asked again."""
    for spec, task in subject.chosen[:2]:
        environment, _ = await start_episode(spec, task)
        try:
            for action in await subject.actions(spec, task):
                await answer_action(environment, action)
            for hook in (is_done, collect_artifacts):
                answers = [await hook(environment) for _ in range(3)]
                if answers[0] != answers[1] or answers[1] != answers[2]:
                    return [f"{task.id}: {hook.__name__}: {answers[0]}, then {answers[1:]}"]
        finally:
            await end_episode(environment)
    return []


async def find_lost_state(subject: Subject) -> list[str]:
    """A restored snapshot goes on as the episode did."""
    kind = subject.spec.environment
    hooks = [name for name in ("snapshot", "restore") if callable(getattr(kind, name, None))]
    if not hooks:
        raise Skip("no snapshot")
    if len(hooks) < 2:
        return [f"there is {hooks[0]} alone"]
    for spec, task in subject.chosen[:2]:
        actions = await subject.actions(spec, task)
        for cut in range(len(actions) + 1):
            try:
                before = await _after_cut(spec, task, actions, cut, is_restored=False)
                after = await _after_cut(spec, task, actions, cut, is_restored=True)
            except EnvironmentFailure as failure:
                return [f"{task.id}: restored after {cut} actions: {failure}"]
            if before != after:
                return [f"{task.id}: restored after {cut} actions, it goes on differently"]
    return []


async def _after_cut(
    spec: EnvironmentSpec, task: Task, actions: Sequence[Message], cut: int, *, is_restored: bool
) -> object:
    """What the episode says after a cut, with or without a new environment there."""
    environment, _ = await start_episode(spec, task)
    try:
        for action in actions[:cut]:
            await answer_action(environment, action)
        if is_restored:
            state = json.loads(json.dumps(await take_snapshot(environment)))
            await end_episode(environment)
            environment, _ = await start_episode(spec, task)
            await restore_snapshot(environment, state)
        replies = [await answer_action(environment, action) for action in actions[cut:]]
        return replies, await is_done(environment), await collect_artifacts(environment)
    finally:
        await end_episode(environment)


def tell_difference(first: Episode, second: Episode) -> str:
    """Say where two episodes differ; empty where they do not."""
    return next(_differences(first, second), "")


def _differences(first: Episode, second: Episode) -> Iterator[str]:
    if first.messages[:1] != second.messages[:1]:
        yield "the openings differ"
    for number, (one, other) in enumerate(zip(first.messages, second.messages, strict=False)):
        if one != other:
            yield f"message {number} differs: {one.text[:60]!r}, then {other.text[:60]!r}"
    if len(first.messages) != len(second.messages) or first.stop != second.stop:
        yield f"one stops with {first.stop}, one with {second.stop}"
    for name in sorted(first.artifacts.keys() | second.artifacts.keys()):
        one, other = (str(episode.artifacts.get(name)) for episode in (first, second))
        if first.artifacts.get(name) != second.artifacts.get(name):
            yield f"the artifact {name!r} differs: {one[:60]!r}, then {other[:60]!r}"


CHECKS = (
    Check(
        name="tools",
        rule="tools have types that a policy can write, a docstring, and a line for each argument",
        find=find_bad_tools,
    ),
    Check(
        name="tasks",
        rule="tasks can be made, in both splits, each id once",
        find=find_bad_tasks,
    ),
    Check(
        name="time",
        rule="reset, tools and close answer in time",
        find=find_late_answers,
        needs=("tools", "tasks"),
    ),
    Check(
        name="plays",
        rule="an episode does not break",
        find=find_broken_episodes,
        needs=("time",),
    ),
    Check(
        name="records",
        rule="tasks and episodes survive JSON and pickling",
        find=find_unrecordable,
        needs=("plays",),
    ),
    Check(
        name="determinism",
        rule="the same task and actions give the same episode",
        find=find_changes,
        needs=("plays", "records"),
    ),
    Check(
        name="isolation",
        rule="an episode does not depend on the one before",
        find=find_left_overs,
        needs=("determinism",),
    ),
    Check(
        name="hooks",
        rule="done, artifacts and reward say the same when asked again",
        find=find_moody_hooks,
        needs=("determinism",),
    ),
    Check(
        name="snapshot",
        rule="a restored snapshot goes on as the episode did",
        find=find_lost_state,
        needs=("determinism", "hooks"),
    ),
)
"""In this order: each after those it needs."""
