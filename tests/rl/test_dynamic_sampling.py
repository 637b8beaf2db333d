"""Dynamic sampling: what is replaced, by what, and when it stops."""

import itertools

import pytest

from rl.dynamic_sampling import MAX_ROUNDS, is_equal, replace_equal_groups
from rl.group_buffer import PlannedGroup


@pytest.fixture
def world(build_group):
    """Groups by the rewards that their task's name spells: `10` has one success of two."""

    def build(name):
        return build_group([None if c == "x" else float(c) for c in name], name=name)

    def plan(name):
        return PlannedGroup(environment="toy", task=build(name).task, round=0)

    async def collect(planned):
        return build(planned.task.id)

    async def run(names, spares):
        iterator = iter([plan(name) for name in spares])
        planned = [plan(name) for name in names]
        groups = [build(name) for name in names]
        kept, others = await replace_equal_groups(planned, groups, collect, iterator)
        assert [p.task.id for p in kept] == [group.id for group in others]
        return [group.id for group in others], [p.task.id for p in iterator]

    return run


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1.0, 0.0], False),
        ([1.0, 1.0], True),
        ([0.0, None, 0.0], True),
        ([None, None], True),
        ([1.0, None, 0.5], False),
    ],
)
def test_a_group_is_equal_if_its_scored_siblings_are(build_group, rewards, expected):
    assert is_equal(build_group(rewards)) is expected


async def test_groups_that_teach_something_stay_and_cost_nothing(world):
    assert await world(["10", "01"], ["11"]) == (["10", "01"], ["11"])


async def test_others_are_collected_in_the_place_of_equal_ones_until_the_step_is_full(world):
    groups, left = await world(["10", "11", "00"], ["11", "01", "1x0", "10"])
    assert groups == ["10", "01", "1x0"]
    assert left == ["10"]


async def test_the_search_is_bounded(world):
    spares = ["11"] * (MAX_ROUNDS + 2)
    groups, left = await world(["10", "11"], spares)
    assert groups == ["10"]
    assert len(left) == 2


async def test_a_step_in_which_every_group_is_equal_is_what_it_is(world):
    groups, _ = await world(["11", "00"], itertools.repeat("11", 50))
    assert groups == ["11", "00"]
