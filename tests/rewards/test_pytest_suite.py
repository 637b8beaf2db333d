"""The grader of pytest suites; the attacks on it are in `attacks/`."""

import pytest

from envs.episode import Episode, StopReason
from envs.sandbox import SandboxError
from envs.task import Task
from rewards import pytest_suite
from rewards.pytest_suite import grade
from rewards.reward import Blame, Invalid, Scored

TESTS = """
import pytest
from shapes.area import area

@pytest.fixture
def side():
    return 3

def test_fixture(side):
    assert area(side) == 9
    assert area(side, 2) == pytest.approx(6.0)

def test_refusal():
    with pytest.raises(ValueError):
        area(-1)

def test_order():
    assert area(2) < area(3)
"""
DECOYS = """
def test_order():
    assert area(2) > area(3)
"""
AREA = """
def area(a, b=None):
    if a < 0:
        raise ValueError(a)
    return a * (a if b is None else b)
"""


def make_episode(files, tests=TESTS, decoys=DECOYS):
    reference = {"tests": tests, "decoys": decoys}
    task = Task(id="s", environment="e", grader="pytest_suite", reference=reference)
    artifacts = {"files": files}
    return Episode(task=task, messages=(), stop=StopReason.FINISHED, artifacts=artifacts)


async def test_a_package_that_passes_fixtures_approximations_and_refusals_scores_1():
    outcome = await grade(make_episode({"shapes/__init__.py": "", "shapes/area.py": AREA}))
    assert outcome == Scored(value=1.0, parts={"checks_passed": 1.0})


async def test_a_package_that_misses_one_assertion_scores_0_and_says_how_many_hold():
    wrong = AREA.replace("raise ValueError(a)", "return 0")
    outcome = await grade(make_episode({"shapes/area.py": wrong}))
    assert outcome == Scored(value=0.0, parts={"checks_passed": 0.75})


@pytest.mark.parametrize(
    "files", [None, {}, "x", {"a.py": 3}, {"../a.py": ""}, {"/a.py": ""}, {"a.py": "x" * 2_000_000}]
)
async def test_what_is_no_set_of_small_files_scores_0(files):
    assert (await grade(make_episode(files))).value == 0


async def test_a_suite_that_cannot_be_used_is_the_graders_fault():
    outcome = await grade(make_episode({"a.py": ""}, decoys=""))
    assert isinstance(outcome, Invalid)
    assert (outcome.reason, outcome.blame) == ("suite_unusable", Blame.GRADER)
    assert "test_order: no decoy can be derived" in outcome.detail


async def test_a_failing_sandbox_is_no_score(monkeypatch):
    async def fail(*_args, **_kwargs):
        raise SandboxError("no bubblewrap")

    monkeypatch.setattr(pytest_suite, "run_python", fail)
    outcome = await grade(make_episode({"shapes/area.py": AREA}))
    assert (outcome.reason, outcome.blame) == ("sandbox_failed", Blame.INFRASTRUCTURE)


async def test_a_pytest_that_does_not_start_is_no_score(monkeypatch):
    monkeypatch.setattr(pytest_suite, "_proof", pytest_suite._Proof())
    monkeypatch.setattr(pytest_suite, "build_pytest_bundle", lambda: b"no archive")
    outcome = await grade(make_episode({"shapes/area.py": AREA}))
    assert outcome.detail == "pytest does not run in the sandbox"
