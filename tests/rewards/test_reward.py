"""A reward is a number in [0, 1], or a named reason why there is none."""

import pytest

from rewards.reward import Scored


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_score_outside_0_to_1_is_refused(value):
    with pytest.raises(ValueError, match="not a number in"):
        Scored(value=value)


def test_a_score_has_named_parts():
    assert Scored(value=0.5, parts={"a": 1.0}).parts == {"a": 1.0}
