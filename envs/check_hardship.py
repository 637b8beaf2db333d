"""Checks of what a run does to an environment: hostile calls, cancellation, crowds, long use."""

import asyncio
import contextlib
import gc
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from envs.check_contract import tell_difference
from envs.environment import (
    EnvironmentFailure,
    answer_text,
    end_episode,
    start_episode,
    takes_text,
)
from envs.messages import ToolCall, ToolSpec
from envs.soundness import EXAMPLES, Check, Subject, example_calls
from envs.tools import call_tool, tool_specs

HOSTILE: Mapping[str, tuple[Any, ...]] = {
    "string": ("", " ", "\0", "x" * 100_000, "../../..", "<|end|>\n'\"\\", "\udc80", "-1"),
    "integer": (0, -1, 10**30, -(10**30)),
    "number": (0.0, -1.0, 1e308, float("inf"), float("nan")),
    "boolean": (False, True),
    "array": ([], [None], [[[]]], ["x"] * 10_000),
    "object": ({}, {"": None}, {"a": {"b": []}}),
}
"""What a policy may write where a type is asked for."""
MEMORY_PER_EPISODE = 128 * 1024
"""Growth in bytes per episode that is no accident any more,"""
MEMORY_NOISE = 4 * 2**20
"""above what an allocator keeps."""
WARM_UP_EPISODES = 5


async def find_breaking_calls(subject: Subject) -> list[str]:
    """Whatever a policy writes, the world does not break."""
    spec, task = subject.chosen[0]
    seconds = subject.section.tool_timeout_seconds
    findings = []
    environment, _ = await start_episode(spec, task)
    try:
        for call in [call for tool in tool_specs(spec.environment) for call in _bad_calls(tool)]:
            try:
                await call_tool(environment, call, seconds)
            except EnvironmentFailure as failure:
                findings.append(f"{call.name} with {str(dict(call.arguments))[:80]}: {failure}")
        for text in HOSTILE["string"] if takes_text(environment) else ():
            try:
                await answer_text(environment, text)
            except EnvironmentFailure as failure:
                findings.append(f"step with {text[:40]!r}: {failure}")
    finally:
        with contextlib.suppress(EnvironmentFailure):
            await end_episode(environment)
    return findings[:5]


def _bad_calls(tool: ToolSpec) -> Iterator[ToolCall]:
    """Yield calls of a tool that are wrong in type, in number, or only in sense."""
    good = {item.name: EXAMPLES[item.type] for item in tool.parameters if not item.choices}
    good |= {item.name: item.choices[0] for item in tool.parameters if item.choices}
    yield ToolCall(name=f"{tool.name}_not", arguments=good)
    yield ToolCall(name=tool.name, arguments={**good, "no_such_argument": 1})
    yield ToolCall(name=tool.name)
    for parameter in tool.parameters:
        for values in HOSTILE.values():  # most are of the wrong type
            for value in values:
                yield ToolCall(name=tool.name, arguments={**good, parameter.name: value})


async def find_uncancelled(subject: Subject) -> list[str]:
    """A tool that is cancelled ends, and its episode can be closed."""
    spec, task = subject.chosen[0]
    seconds = subject.limits.cancel_seconds
    findings = []
    for call in example_calls(spec, EXAMPLES):
        environment, _ = await start_episode(spec, task)
        running = asyncio.create_task(call_tool(environment, call, seconds * 5))
        await asyncio.sleep(0.002)
        running.cancel()
        await asyncio.wait([running], timeout=seconds)
        if not running.done():
            findings.append(f"{call.name} goes on after it is cancelled")
            running.cancel()
            await asyncio.wait([running], timeout=seconds)
        if running.done() and not running.cancelled() and running.exception() is not None:
            findings.append(f"{call.name}, cancelled: {running.exception()}")
        try:
            await end_episode(environment)
        except EnvironmentFailure as failure:
            findings.append(f"close after a cancelled {call.name}: {failure}")
    return findings


async def find_interference(subject: Subject) -> list[str]:
    """Episodes played at once are those played one after the other."""
    worlds = subject.chosen * 2
    alone = [await subject.replay(spec, task) for spec, task in subject.chosen] * 2
    together = await asyncio.gather(*(subject.replay(spec, task) for spec, task in worlds))
    for (_, task), one, other in zip(worlds, alone, together, strict=True):
        difference = tell_difference(one, other)
        if difference:
            return [f"{task.id}, played beside others: {difference}"]
    return []


async def find_process_changes(subject: Subject) -> list[str]:
    """An episode leaves the process as it was: folder, variables, signals, global random."""
    spec, task = subject.chosen[0]
    await subject.episode(spec, task)
    folder, variables, paths = subject.process  # as before any episode: imports happen once
    try:
        _restore_process(folder, variables, paths)
        before = _process_state()
        await subject.replay(spec, task)
        after = _process_state()
    finally:
        _restore_process(folder, variables, paths)
    return [f"{task.id}: changed {name}" for name in before if before[name] != after[name]]


def _restore_process(folder: Path, variables: Mapping[str, str], paths: Sequence[str]) -> None:
    os.chdir(folder)
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)
    sys.path[:] = paths


def _process_state() -> dict[str, object]:
    return {
        "the working folder": Path.cwd(),
        "environment variables": dict(os.environ),
        "sys.path": list(sys.path),
        "signal handlers": [signal.getsignal(number) for number in signal.valid_signals()],
        "standard streams": (sys.stdin, sys.stdout, sys.stderr),
        "the recursion limit": sys.getrecursionlimit(),
        "the global random numbers": random.getstate(),
    }


async def find_leaks(subject: Subject) -> list[str]:
    """Many episodes leave no process, file, thread or memory behind."""
    spec, task = subject.chosen[0]
    for _ in range(WARM_UP_EPISODES):
        await subject.replay(spec, task)
    deadline = time.perf_counter() + subject.limits.leak_seconds
    with _folder_of_its_own() as folder:
        before = _holdings(folder)
        middle, count = before, 0
        for count in range(1, subject.limits.leak_episodes + 1):
            await subject.replay(spec, task)
            if count == subject.limits.leak_episodes // 2:
                middle = _holdings(folder)
            if time.perf_counter() > deadline:
                break
        await asyncio.sleep(0.1)  # what ends by itself has ended
        after = _holdings(folder)
    findings = [
        f"{after[name] - before[name]} more {name} after {count} episodes"
        for name in before
        if name != "memory" and after[name] - before[name] >= max(2, count // 2)
    ]
    # The first half may still fill caches; what grows in the second grows for ever.
    grown = after["memory"] - middle["memory"]
    num_late = count - subject.limits.leak_episodes // 2
    if num_late > 0 and grown > MEMORY_NOISE + num_late * MEMORY_PER_EPISODE:
        findings.append(f"{grown / 2**20:.0f} MiB more memory after {num_late} episodes")
    return findings


def _holdings(folder: Path) -> dict[str, int]:
    """Count what this process holds."""
    gc.collect()
    process = psutil.Process()
    return {
        "processes": len(process.children(recursive=True)),
        "open files": process.num_fds(),
        "files on disk": sum(len(names) for _, *names in _walk(folder)),
        "threads": threading.active_count(),
        "memory": process.memory_info().rss,
    }


def _walk(folder: Path) -> Iterator[tuple[str, ...]]:
    for _, folders, files in os.walk(folder):
        yield ("", *folders, *files)


@contextlib.contextmanager
def _folder_of_its_own() -> Iterator[Path]:
    """Give this process a folder for its temporary files, so that each is seen."""
    saved, variable = tempfile.tempdir, os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory() as name:
        tempfile.tempdir = os.environ["TMPDIR"] = name
        try:
            yield Path(name)
        finally:
            tempfile.tempdir = saved
            del os.environ["TMPDIR"]
            if variable is not None:
                os.environ["TMPDIR"] = variable


CHECKS = (
    Check(
        name="malformed",
        rule="no call that a policy can write breaks the world",
        find=find_breaking_calls,
        needs=("plays",),
    ),
    Check(
        name="cancel",
        rule="a cancelled tool ends, and its episode can be closed",
        find=find_uncancelled,
        needs=("plays",),
    ),
    Check(
        name="parallel",
        rule="episodes played at once do not meet",
        find=find_interference,
        needs=("determinism", "isolation"),
    ),
    Check(
        name="process",
        rule="an episode leaves the process as it was",
        find=find_process_changes,
        needs=("determinism",),
    ),
    Check(
        name="leaks",
        rule="many episodes leave no process, file, thread or memory behind",
        find=find_leaks,
        needs=("plays",),
    ),
)
