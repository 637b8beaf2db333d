"""The code environment: rules, tasks, tools and expert."""

import random
from itertools import islice

import pytest

from envs.check import check_environment
from envs.code_tests import (
    SPEC,
    CodeTests,
    find_syntax_error,
    list_rules,
    make_expert,
    make_tasks,
    parse_description,
)
from envs.environment import Split, ToolError
from envs.play import play

HELD_OUT = make_tasks(Split.HELD_OUT)
ALL = [*make_tasks(Split.TRAIN), *HELD_OUT]


def load(code):
    """Run trusted text: the tests' own solutions."""
    scope = {}
    exec(code, scope)
    return scope["f"]


def solves(function, task):
    for xs, expected in task.reference["hidden_tests"]:
        try:
            value = function(xs)
        except StopIteration:
            return False
        if value != expected:
            return False
    return True


def test_the_text_of_a_rule_computes_what_the_rule_says():
    for rule in islice(list_rules(), 0, None, 7):
        for is_inclusive in (False, True):
            function = load(rule.write(is_inclusive=is_inclusive))
            for xs in ([0, 4.5, 12, rule.threshold, 1, 7.5], [rule.threshold, 0.5, 11.5]):
                assert function(xs) == rule.apply(xs, is_inclusive=is_inclusive)


def test_rules_have_unique_keys_and_descriptions_that_can_be_read_back():
    rules = list(list_rules())
    assert len({rule.key for rule in rules}) == len(rules)
    assert all(parse_description(f"code f(xs): {rule.describe()}") == rule for rule in rules)
    with pytest.raises(ValueError, match="no rule reads"):
        parse_description("code f(xs): do something")


def test_a_solution_passes_its_own_tests_and_the_other_reading_fails_both_kinds():
    for task in ALL[::5]:
        rule = parse_description(f"code f(xs): {task.data['description']}")
        readings = [rule.write(is_inclusive=is_inclusive) for is_inclusive in (False, True)]
        (other,) = [code for code in readings if code != task.reference["solution"]]
        function, other = load(task.reference["solution"]), load(other)
        assert solves(function, task)
        assert not solves(other, task)
        assert all(function(xs) == expected for xs, expected in task.data["public_tests"])
        xs, expected = task.data["public_tests"][0]
        assert other(xs) != expected


def test_tests_have_the_promised_shape():
    for task in ALL[::5]:
        assert len(task.data["public_tests"]) == 3
        assert len(task.reference["hidden_tests"]) == 12
        for xs, expected in task.reference["hidden_tests"]:
            assert 5 <= len(xs) <= 8
            assert all(0 <= x <= 12 for x in xs)
            assert expected not in ([], None)
            assert parse_description(f"code f(xs): {task.data['description']}").threshold in xs


def test_there_are_enough_held_out_functions_and_none_solves_many_others():
    assert len(HELD_OUT) >= 500
    functions = {task.reference["solution"]: load(task.reference["solution"]) for task in HELD_OUT}
    assert len(functions) >= 200
    for code, function in functions.items():
        others = [task for task in HELD_OUT if task.reference["solution"] != code]
        solved = sum(solves(function, task) for task in others)
        assert solved <= 0.02 * len(others), code


def test_about_two_thirds_of_the_tasks_are_inclusive():
    share = sum("=" in task.reference["solution"] for task in ALL) / len(ALL)
    assert 0.62 < share < 0.68


def test_tasks_are_the_same_in_every_process():
    task = next(task for task in ALL if task.id == "code_tests/above-4-add-3-sum")
    assert task.data["public_tests"][0] == [[4, 7], 17]
    assert task.reference["hidden_tests"][0][1] == load(task.reference["solution"])(
        task.reference["hidden_tests"][0][0]
    )


async def test_the_opening_shows_no_test():
    task = HELD_OUT[0]
    opening = CodeTests().reset(**task.data)
    assert opening == f"code f(xs): {task.data['description']}"
    assert "[" not in opening


async def test_the_tools_lead_from_a_draft_to_a_submission():
    world = CodeTests()
    world.reset("anything", [[[4, 7], 17], [[1], 0], [[8, 3], 11]])
    with pytest.raises(ToolError, match="nothing is written"):
        await world.run_tests()
    assert await world.write("def f(xs): return sum(x + 3 for x in xs if x > 4)") == "saved"
    assert await world.run_tests() == "2 of 3 passed; f([4, 7]) = 10, not 17"
    assert await world.write("def f(xs): return sum(x + 3 for x in xs if x >= 4)") == "saved"
    assert await world.run_tests() == "3 of 3 passed"
    assert not world.done()
    assert world.artifacts() == {}
    assert world.submit() == "submitted"
    assert world.done()
    assert world.artifacts()["code"].endswith(">= 4)")


async def test_a_failing_call_is_shown_by_its_error():
    world = CodeTests()
    world.reset("anything", [[[4, 7], 17]])
    await world.write("def f(xs): return y")
    assert await world.run_tests() == "0 of 1 passed; f([4, 7]) = NameError, not 17"


@pytest.mark.parametrize(
    ("code", "reply"),
    [
        ("def f(xs) return 1", "syntax error in line 1: expected ':'"),
        ("def f(xs): return '\\d' is xs", None),
        ("x = \0", "syntax error"),
        ("(" * 1500, "syntax error"),
        ("x" * 2001, "error: more than 2000 characters"),
    ],
)
def test_a_syntax_error_is_found_without_running_anything(code, reply):
    found = find_syntax_error(code)
    assert found == reply or (found or "").startswith(reply or "x")


async def test_a_syntax_error_keeps_the_earlier_text():
    world = CodeTests()
    world.reset("anything", [[[1], 1]])
    await world.write("def f(xs): return xs[0]")
    assert (await world.write("def f(xs): return (")).startswith("syntax error")
    assert await world.run_tests() == "1 of 1 passed"


async def test_replies_are_short():
    for task in HELD_OUT[::60]:
        world = CodeTests()
        world.reset(**task.data)
        await world.write(parse_description(world.reset(**task.data)).write(is_inclusive=False))
        assert len(await world.run_tests()) <= 60


async def test_the_careful_expert_repairs_and_the_hasty_one_submits_its_draft():
    task = next(task for task in HELD_OUT if "=" in task.reference["solution"])
    careful = await play(SPEC, task, make_expert(task, random.Random(0), careful_share=1.0))
    hasty = await play(SPEC, task, make_expert(task, random.Random(0), careful_share=0.0))
    names = [
        [call.name for message in episode.messages for call in message.tool_calls]
        for episode in (careful, hasty)
    ]
    assert names == [
        ["write", "run_tests", "write", "run_tests", "submit"],
        ["write", "submit"],
    ]
    assert careful.artifacts["code"] == task.reference["solution"]
    assert hasty.artifacts["code"] != task.reference["solution"]


async def test_the_environment_passes_its_check():
    assert await check_environment(SPEC, num_tasks=3) == []
