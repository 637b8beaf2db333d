"""Graders may block, never end, raise and be cancelled; the loop goes on and nothing stays."""

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest

from envs import foreign_code
from envs.episode import Episode, StopReason
from envs.sandbox import run_python
from envs.sandboxes.protocol import SandboxLimits
from envs.sandboxes.registry import start_sandbox
from envs.task import Task
from rewards.grading import grade_episode
from rewards.reward import Blame, Invalid, Scored

EPISODE = Episode(
    task=Task(id="t", environment="e", grader="g"), messages=(), stop=StopReason.FINISHED
)


async def sleep_without_awaiting(_):
    time.sleep(1.0)
    return Scored(value=1.0)


async def compute_for_ever(_):
    while True:
        pass


async def wait_for_ever(_):
    await asyncio.sleep(600)


async def test_a_grader_that_blocks_does_not_hold_up_the_loop():
    beats = 0

    async def beat():
        nonlocal beats
        while True:
            await asyncio.sleep(0.01)
            beats += 1

    task = asyncio.create_task(beat())
    outcome = await grade_episode(sleep_without_awaiting, EPISODE, 20.0)
    task.cancel()
    assert outcome == Scored(value=1.0)
    assert beats > 10


@pytest.mark.parametrize("grader", [sleep_without_awaiting, compute_for_ever, wait_for_ever])
async def test_a_grader_without_an_end_is_invalid_and_its_thread_ends(grader, monkeypatch):
    monkeypatch.setattr(foreign_code, "CLEAN_UP_SECONDS", 0.1)
    outcome = await grade_episode(grader, EPISODE, 0.1)
    assert isinstance(outcome, Invalid)
    assert (outcome.reason, outcome.blame) == ("grader_timeout", Blame.GRADER)
    deadline = time.monotonic() + 20
    while grading_threads() and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    assert grading_threads() == []


def grading_threads():
    return [thread for thread in threading.enumerate() if thread.name == "foreign-code"]


async def test_an_outcome_of_no_kind_and_any_exception_are_the_graders_fault():
    async def give_a_number(_):
        return 1.0

    async def leave(_):
        raise SystemExit(3)

    for grader, detail in (
        (give_a_number, "TypeError: the grader returned float, not Scored or Invalid"),
        (leave, "SystemExit: 3"),
    ):
        outcome = await grade_episode(grader, EPISODE, 20.0)
        assert outcome == Invalid(reason="grader_failed", blame=Blame.GRADER, detail=detail)


def processes_with(argument):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if argument.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("way", ["one program", "a session"])
async def test_cancelled_while_it_runs_a_sandbox_it_leaves_no_process(way):
    marker = f"8{os.getpid()}{time.monotonic_ns()}"
    limits = SandboxLimits(wall_seconds=300.0)

    async def grade(_):
        if way == "one program":
            # The marker stands in the command line of the inner process.
            code = f"import os; os.execvp('sleep', ['sleep', '{marker}'])"
            await run_python(code, limits=limits)
        else:
            sandbox = await start_sandbox(limits, owner="grader")
            try:
                await sandbox.exec(["sleep", marker])
            finally:
                await sandbox.stop()

    task = asyncio.create_task(grade_episode(grade, EPISODE, 200.0))
    deadline = time.monotonic() + 20
    while not processes_with(marker):
        assert time.monotonic() < deadline, "the program did not start"
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    deadline = time.monotonic() + 20
    while (processes_with(marker) or grading_threads()) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    assert processes_with(marker) == []
    assert grading_threads() == []
