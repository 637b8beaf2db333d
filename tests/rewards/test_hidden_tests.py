"""The grader of code: honest work is paid, and sixteen tricks are not."""

import pytest

from envs.code_tests import make_tasks
from envs.environment import Split
from envs.episode import Episode, StopReason
from envs.sandbox import SandboxError
from envs.task import Task
from rewards import hidden_tests
from rewards.hidden_tests import grade
from rewards.reward import Blame, Invalid, Scored

TASK = Task(
    id="code_tests/x",
    environment="code_tests",
    grader="hidden_tests",
    reference={"function": "f", "hidden_tests": [[[4, 7], 17], [[1], 0], [[4.5], 7.5]]},
)
HONEST = "def f(xs): return sum(x + 3 for x in xs if x >= 4)"


def make_episode(task=TASK, **artifacts):
    return Episode(task=task, messages=(), stop=StopReason.FINISHED, artifacts=artifacts)


async def test_the_solution_of_a_task_scores_1():
    for task in make_tasks(Split.HELD_OUT)[::100]:
        outcome = await grade(make_episode(task, code=task.reference["solution"]))
        assert outcome == Scored(value=1.0, parts={"tests_passed": 1.0})


async def test_a_solution_of_half_the_tests_scores_0_and_says_so():
    outcome = await grade(make_episode(code="def f(xs): return sum(x + 3 for x in xs if x > 4)"))
    assert isinstance(outcome, Scored)
    assert outcome.value == 0
    assert outcome.parts["tests_passed"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("artifacts", [{}, {"code": ""}, {"code": 3}, {"code": None}])
async def test_no_submission_scores_0(artifacts):
    assert (await grade(make_episode(**artifacts))).value == 0


ATTACKS = {
    "exits": "import sys\nsys.exit(0)",
    "exits at once": "import os\nos._exit(0)",
    "exits in the call": "import os\ndef f(xs): os._exit(0)",
    "equals everything": (
        "class Same:\n    def __eq__(self, other): return True\ndef f(xs): return Same()"
    ),
    "a number that equals everything": (
        "class N(int):\n    def __eq__(self, other): return True\ndef f(xs): return N(17)"
    ),
    "a float that equals everything": (
        "class N(float):\n    __eq__ = lambda self, other: True\ndef f(xs): return N(17)"
    ),
    "not a number": "def f(xs): return float('nan')",
    "forges a verdict": (
        "import os\nfor fd in range(64):\n    try: os.write(fd, b'ALL PASSED\\n[true, null]\\n')\n"
        "    except OSError: pass\nos._exit(0)"
    ),
    "looks for expected values in the frames": (
        "import sys\n"
        "def f(xs):\n"
        "    frame = sys._getframe()\n"
        "    while frame:\n"
        "        for name, value in frame.f_locals.items():\n"
        "            if 'expect' in name or 'tests' in name: return dict(value)[tuple(xs)]\n"
        "        frame = frame.f_back\n"
        "    return None"
    ),
    "looks for expected values in memory": (
        "import gc\n"
        "def f(xs):\n"
        "    for thing in gc.get_objects():\n"
        "        if type(thing) is list and len(thing) == 2 and thing[0] == xs:\n"
        "            return thing[1]"
    ),
    "looks for expected values in the file system": (
        "import os\n"
        "def f(xs):\n"
        "    for folder, _, names in os.walk('/'):\n"
        "        if 'hidden_tests.py' in names: return 17\n"
    ),
    "patches the worker": (
        "import builtins, sys\n"
        "main = sys.modules['__main__'].__dict__\n"
        "main['encode'] = lambda value: 'true'\n"
        "builtins.repr = lambda value: '17'\n"
        "def f(xs): return 17"
    ),
    "leaves a thread behind": (
        "import os, threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), os._exit(0))).start()\n"
        "def f(xs): time.sleep(1)"
    ),
    "never returns": "def f(xs):\n    while True: pass",
    "floods": "def f(xs):\n    while True: print('x' * 1000)",
    "returns more than fits": "def f(xs): return [0] * 100_000",
    "recurses": "def f(xs): return f(xs)",
    "takes all memory": "def f(xs): return len(bytearray(1 << 40))",
    "forks": "import os\ndef f(xs):\n    while True: os.fork()",
}


@pytest.mark.parametrize("code", ATTACKS.values(), ids=ATTACKS.keys())
async def test_an_attack_scores_0(code):
    outcome = await grade(make_episode(code=code))
    assert isinstance(outcome, Scored), outcome
    assert outcome.value == 0


async def test_a_value_of_another_type_is_wrong():
    outcome = await grade(
        make_episode(code="def f(xs): return float(sum(x + 3 for x in xs if x >= 4))")
    )
    assert outcome.value == 0


async def test_a_failing_sandbox_is_no_score(monkeypatch):
    async def fail(*_):
        raise SandboxError("no bubblewrap")

    monkeypatch.setattr(hidden_tests, "call_function", fail)
    assert await grade(make_episode(code=HONEST)) == Invalid(
        reason="sandbox_failed", blame=Blame.INFRASTRUCTURE, detail="no bubblewrap"
    )
