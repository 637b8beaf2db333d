"""Submitted files that are right, wrong, or no files at all."""

import pytest

from envs.episode import Episode, StopReason
from envs.sandbox import SandboxError
from envs.task import Task
from rewards import hidden_calls
from rewards.hidden_calls import grade
from rewards.reward import Blame, Invalid

TASK = Task(
    id="t",
    environment="e",
    grader="hidden_calls",
    reference={
        "target": "solution:f",
        "hidden_tests": [[{"x": 1, "y": 2}, [3]], [{"x": 2, "y": 2}, [4]]],
    },
)
RIGHT = {"solution.py": "from a import add\ndef f(x, y): return [add(x, y)]", "a.py": ""}
RIGHT["a.py"] = "def add(x, y): return x + y"


async def score(artifacts):
    episode = Episode(task=TASK, messages=(), stop=StopReason.FINISHED, artifacts=artifacts)
    return await grade(episode)


async def test_files_that_pass_every_hidden_test_score_1():
    assert (await score({"files": RIGHT})).value == 1.0


@pytest.mark.parametrize(
    ("code", "share"),
    [
        ("def f(x, y): return [3]", 0.5),
        ("def f(x, y): return [float(x + y)]", 0.0),
        ("def f(x): return [3]", 0.0),
        ("import os; os._exit(0)", 0.0),
        (
            "class A(list):\n    def __eq__(self, other): return True\ndef f(**_): return A()",
            0,
        ),
        ("import sys\ndef f(x, y): return sys._getframe(1).f_globals.get('tests', 0)", 0.0),
        ("def f(", 0.0),
    ],
)
async def test_wrong_and_cheating_files_score_0(code, share):
    outcome = await score({"files": {"solution.py": code}})
    assert outcome.value == 0.0
    assert outcome.parts["tests_passed"] == share


@pytest.mark.parametrize(
    "artifacts",
    [{}, {"files": {}}, {"files": "text"}, {"files": {"a.py": 1}}, {"files": {"../a.py": ""}}],
)
async def test_what_is_no_set_of_files_scores_0(artifacts):
    assert (await score(artifacts)).value == 0.0


async def test_a_sandbox_that_fails_is_nobodys_score(monkeypatch):
    async def fail(*_):
        raise SandboxError("no room")

    monkeypatch.setattr(hidden_calls, "call_function", fail)
    outcome = await score({"files": RIGHT})
    assert outcome == Invalid(reason="sandbox_failed", blame=Blame.INFRASTRUCTURE, detail="no room")
