"""Facts to find and code to write: programs, tasks, tools."""

import random
from datetime import date

from envs.environment import Split
from envs.fact_code import PROGRAMS, SPEC, make_expert, make_tasks
from envs.play import play
from envs.tools import tool_specs
from rewards.hidden_calls import grade


def test_the_text_of_a_program_computes_what_the_program_says():
    source = random.Random(0)
    for program in PROGRAMS.values():
        scope = {}
        exec(program.solution.format(fact="1999-12-31"), scope)
        for _ in range(50):
            argument, value = program.compute(date(1999, 12, 31), source)
            assert scope["f"](argument) == value


def test_nothing_that_the_policy_is_given_holds_the_fact(dictionary):
    for task in make_tasks(Split.TRAIN, num_tasks=40):
        fact = dictionary.find(task.reference["titles"][-1]).date
        assert fact in task.reference["solution"] or "month" in task.data["question"]
        assert fact not in str(task.data)
        assert len(task.reference["hidden_tests"]) == 12


def test_it_has_the_tools_of_both_worlds():
    names = {tool.name for tool in tool_specs(SPEC.environment)}
    assert {"search", "open", "find_in_page", "write_file", "run_python", "submit"} <= names
    assert "run_tests" not in names


async def test_the_expert_passes_and_another_fact_does_not(dictionary):
    for task in make_tasks(Split.HELD_OUT, num_tasks=40)[:3]:
        episode = await play(SPEC, task, make_expert(task, random.Random(0)))
        assert (await grade(episode)).value == 1.0
        text = task.reference["solution"].replace("19", "18").replace("20", "18")
        wrong = {**episode.artifacts, "files": {"solution.py": text}}
        assert (
            await grade(type(episode)(task=task, messages=(), stop=episode.stop, artifacts=wrong))
        ).value == 0.0
