"""Rules for outcomes without a score: an infrastructure failure cannot become 0."""

import pytest
from pydantic import ValidationError

from rewards.config import InvalidRule
from rewards.reward import Blame, Invalid


@pytest.mark.parametrize("blame", ["environment", "infrastructure", "grader"])
def test_only_what_the_model_did_may_count_as_zero(blame):
    with pytest.raises(ValidationError, match="only what the model did may count as 0"):
        InvalidRule(action="zero", blame=blame)
    assert InvalidRule(action="zero", blame="model").blame is Blame.MODEL


def test_what_the_model_did_is_not_tried_again():
    with pytest.raises(ValidationError, match="until it is lucky"):
        InvalidRule(action="retry", blame="model")


@pytest.mark.parametrize("retries", [0, 11])
def test_retries_are_bounded(retries):
    with pytest.raises(ValidationError, match="max_retries"):
        InvalidRule(action="retry", blame="grader", max_retries=retries)


def test_a_rule_holds_for_the_blame_it_names_alone():
    rule = InvalidRule(action="zero", blame="model")
    assert rule.applies_to(Invalid(reason="r", blame=Blame.MODEL))
    assert not rule.applies_to(Invalid(reason="r", blame=Blame.INFRASTRUCTURE))
