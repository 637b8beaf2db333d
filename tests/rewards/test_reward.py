"""A reward is a number in [0, 1], or a named reason why there is none."""

import pytest

from rewards.reward import Scored, require_outcome


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_score_outside_0_to_1_is_refused(value):
    with pytest.raises(ValueError, match="not a number in"):
        Scored(value=value)


def test_a_score_has_named_parts():
    assert Scored(value=0.5, parts={"a": 1.0}).parts == {"a": 1.0}


@pytest.mark.parametrize("value", [None, "1", [1.0], 1 + 0j])
def test_a_score_of_another_type_is_refused(value):
    with pytest.raises(ValueError, match="not a number in"):
        Scored(value=value)


@pytest.mark.parametrize("bad", [float("nan"), float("-inf"), "1", None])
def test_a_part_and_a_turn_that_are_no_finite_numbers_are_refused(bad):
    with pytest.raises(ValueError, match="part a of the reward"):
        Scored(value=1.0, parts={"a": bad})
    with pytest.raises(ValueError, match="turn 1 earned"):
        Scored(value=1.0, turns=(0.0, bad))


def test_rewards_per_turn_must_be_one_for_each():
    scored = Scored(value=1.0, turns=(0.5, -0.5))
    assert require_outcome(scored, 2) is scored
    with pytest.raises(ValueError, match="gave 2 turns a reward, of 3"):
        require_outcome(scored, 3)


@pytest.mark.parametrize("value", [None, 1.0, {"value": 1.0}])
def test_what_is_no_outcome_is_refused(value):
    with pytest.raises(TypeError, match="not Scored or Invalid"):
        require_outcome(value)
