"""Credit: hand-computed advantages, and the gradient's expectation by enumeration."""

import itertools

import numpy as np
import pytest

from rl.config import CreditSection
from rl.credit import assign_credit, rloo

RLOO = CreditSection()


def advantages_of(samples):
    return [float(sample.advantages[sample.segment.loss_mask][0]) for sample in samples]


def test_rloo_equals_the_hand_computed_advantages(build_group):
    samples = assign_credit([build_group([1.0, 0.0, 0.0, 1.0])], RLOO)
    # 1 - (0 + 0 + 1) / 3 and 0 - (1 + 0 + 1) / 3
    assert advantages_of(samples) == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])


def test_an_invalid_member_is_in_no_baseline_and_in_no_batch(build_group):
    samples = assign_credit([build_group([1.0, None, 0.0, 0.5])], RLOO)
    assert advantages_of(samples) == pytest.approx([0.75, -0.75, 0.0])


@pytest.mark.parametrize("rewards", [[1.0, None], [None, None]])
def test_a_group_with_fewer_than_two_valid_members_gives_no_sample(build_group, rewards):
    assert assign_credit([build_group(rewards)], RLOO) == []


def test_a_group_whose_rewards_are_equal_is_kept_with_advantage_zero(build_group):
    samples = assign_credit([build_group([1.0, 1.0, 1.0]), build_group([1.0, 0.0])], RLOO)
    assert advantages_of(samples) == pytest.approx([0.0, 0.0, 0.0, 1.0, -1.0])


def test_advantages_are_zero_off_the_policy_tokens(build_group):
    for sample in assign_credit([build_group([1.0, 0.0])], RLOO):
        assert (sample.advantages[:2] == 0).all()
        assert (sample.advantages[2:] != 0).all()


def test_advantages_of_a_group_sum_to_zero_and_ignore_a_shift(build_group):
    plain = advantages_of(rloo([build_group([0.1, 0.4, 0.2])]))
    shifted = advantages_of(rloo([build_group([0.5, 0.8, 0.6])]))
    assert sum(plain) == pytest.approx(0.0, abs=1e-6)
    assert plain == pytest.approx(shifted, abs=1e-6)


def test_leave_one_out_keeps_the_expected_gradient(build_group):
    """Enumerate every group of three draws from a two-armed softmax bandit."""
    probability = np.array([0.3, 0.7])
    rewards = np.array([1.0, 0.2])
    score = np.eye(2) - probability  # d log pi(action) / d logits, one row per action
    exact = sum(probability[a] * rewards[a] * score[a] for a in range(2))

    expected = np.zeros(2)
    for actions in itertools.product(range(2), repeat=3):
        samples = rloo([build_group([float(rewards[a]) for a in actions])])
        estimate = np.mean(
            [a * score[action] for a, action in zip(advantages_of(samples), actions, strict=True)],
            axis=0,
        )
        expected += np.prod(probability[list(actions)]) * estimate
    assert expected == pytest.approx(exact, abs=1e-6)


def test_members_that_go_missing_at_random_leave_the_expected_gradient_unbiased(build_group):
    """Enumerate all groups of three draws, and all subsets of at least two that stay."""
    probability, rewards = np.array([0.3, 0.7]), np.array([1.0, 0.2])
    score = np.eye(2) - probability
    exact = sum(probability[a] * rewards[a] * score[a] for a in range(2))
    subsets = [kept for kept in itertools.product([True, False], repeat=3) if sum(kept) >= 2]
    for kept in subsets:
        expected = np.zeros(2)
        for actions in itertools.product(range(2), repeat=3):
            given = [
                float(rewards[a]) if stays else None for a, stays in zip(actions, kept, strict=True)
            ]
            stayed = [action for action, stays in zip(actions, kept, strict=True) if stays]
            advantages = advantages_of(rloo([build_group(given)]))
            terms = [a * score[action] for a, action in zip(advantages, stayed, strict=True)]
            expected += np.prod(probability[list(actions)]) * np.mean(terms, axis=0)
        assert expected == pytest.approx(exact, abs=1e-6)


def test_a_rule_of_ones_own_is_found_by_its_dotted_path(build_group):
    section = CreditSection(type="rl.credit:rloo")
    assert len(assign_credit([build_group([1.0, 0.0])], section)) == 2


@pytest.mark.parametrize("name", ["roo", "rl.credit:nothing", "no.such.module:rule"])
def test_an_unknown_rule_is_one_clear_line(build_group, name):
    with pytest.raises(ValueError, match=r"credit\.type = ") as error:
        assign_credit([build_group([1.0, 0.0])], CreditSection(type=name))
    assert "\n" not in str(error.value)
