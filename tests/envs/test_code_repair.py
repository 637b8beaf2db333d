"""The repository environment: tasks, tools, and what the policy never sees."""

import random

import pytest

from envs import code_repair
from envs.code_repair import SPEC, CodeRepair, make_expert, make_tasks
from envs.corpora.code_problems import CodeProblem
from envs.environment import Split, ToolError
from envs.play import play
from rewards.hidden_calls import grade

FILES = {
    "solution.py": "from helpers import add\n\ndef total(x, y):\n    return add(x, y)\n",
    "helpers.py": "def add(x, y):\n    return x + y\n",
}


@pytest.fixture
def tasks(monkeypatch):
    """Tasks of ten small problems."""

    def load(name, limit):
        return [
            CodeProblem(
                key=f"{name}-{number}",
                description="Add two numbers.",
                function="total",
                parameters=("x", "y"),
                files=FILES,
                tests=[({"x": n, "y": 7001 + n}, 7001 + 2 * n) for n in range(15)],
                faulty_files={**FILES, "helpers.py": "def add(x, y):\n    return x - y\n"},
            )
            for number in range(limit)
        ]

    monkeypatch.setattr(code_repair, "load_problems", load)
    make_tasks.cache_clear()
    yield [*make_tasks(Split.TRAIN, limit=10), *make_tasks(Split.HELD_OUT, limit=10)]
    make_tasks.cache_clear()


def test_both_kinds_of_a_problem_are_on_the_same_side(tasks):
    assert len(tasks) == 20
    sides = [
        {task.id.rpartition("-")[0] for task in make_tasks(split, limit=10)} for split in Split
    ]
    assert sides[0].isdisjoint(sides[1])
    assert all(sides)


def test_no_hidden_test_is_in_what_the_environment_gets(tasks):
    for task in tasks:
        assert len(task.data["public_tests"]) == 3
        assert len(task.reference["hidden_tests"]) == 12
        assert "7029" in str(task.reference)
        assert "7029" not in str(task.data)


async def test_the_workspace_holds_the_files_and_the_public_tests_alone(tasks):
    repair = next(task for task in tasks if task.id.endswith("repair"))
    world = CodeRepair()
    try:
        opening = await world.reset(**repair.data)
        assert "`total(x, y)` in solution.py has a fault" in opening
        assert await world.list_files() == "helpers.py\npublic_tests.json\nsolution.py"
        shown = await world.run_python("print(*map(open, ()), open('public_tests.json').read())")
        assert "7003" in shown
        assert "7004" not in shown
    finally:
        await world.close()


async def test_the_tools_lead_from_a_fault_to_a_submission(tasks):
    repair = next(task for task in tasks if task.id.endswith("repair"))
    world = CodeRepair()
    try:
        await world.reset(**repair.data)
        assert (await world.run_tests()).startswith("0 of 3 passed; total(**{'x': 0,")
        await world.patch_file("helpers.py", "x - y", "x + y")
        assert await world.run_tests() == "3 of 3 passed"
        assert world.artifacts() == {}
        assert not world.done()
        assert await world.submit() == "submitted"
        assert world.done()
        assert world.artifacts() == {"files": FILES}
    finally:
        await world.close()


async def test_without_a_python_file_nothing_is_submitted(tasks):
    world = CodeRepair()
    try:
        await world.reset("order", "f", {}, [])
        with pytest.raises(ToolError, match="no Python file"):
            await world.submit()
        assert not world.done()
    finally:
        await world.close()


async def test_the_expert_scores_1_and_the_task_as_it_is_given_0(tasks):
    for task in tasks[:2]:
        episode = await play(SPEC, task, make_expert(task, random.Random(0)))
        assert (await grade(episode)).value == 1.0
        given = {"files": task.data["files"]}
        idle = type(episode)(task=task, messages=(), stop=episode.stop, artifacts=given)
        assert (await grade(idle)).value == 0.0
