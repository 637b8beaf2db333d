"""Baselines: hand-computed, against sums written out, and what they must not depend on."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rl.baseline import BASELINES, batch_mean, critic, group_mean, returns_to_go, rloo, state_group
from rl.turn_grid import TurnGrid

SEEDS = st.integers(0, 10_000)
ROW_BASELINES = (rloo, group_mean, batch_mean)


def outcomes(rewards, groups, turns=2, **fields):
    """Trajectories of `turns` turns with an outcome each."""
    grid = np.zeros((len(rewards), turns))
    grid[:, -1] = rewards
    return TurnGrid(
        rewards=grid,
        lengths=np.full(len(rewards), turns),
        groups=np.array(groups),
        final_values=np.zeros(len(rewards)),
        **fields,
    )


def test_the_baselines_equal_the_hand_computed_ones():
    grid = outcomes([1.0, 0.0, 0.0, 1.0], [3, 3, 3, 8])
    assert rloo(grid)[:, 0] == pytest.approx([0.0, 0.5, 0.5, 1.0])
    assert group_mean(grid)[:, 0] == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1.0])
    assert batch_mean(grid)[:, 0] == pytest.approx([0.5] * 4)


@given(seed=SEEDS)
def test_leave_one_out_stretches_the_distance_to_the_mean(build_grid, seed):
    grid = build_grid(seed, trajectories=8)
    deviation = grid.returns - group_mean(grid)[:, 0]
    assert grid.returns - rloo(grid)[:, 0] == pytest.approx(deviation * 4 / 3)
    assert [deviation[grid.groups == g].sum() for g in (0, 1)] == pytest.approx([0, 0], abs=1e-12)


@given(seed=SEEDS)
@pytest.mark.parametrize("baseline", ROW_BASELINES, ids=lambda function: function.__name__)
def test_row_baselines_move_with_the_rewards(build_grid, baseline, seed):
    grid = build_grid(seed)
    moved = dataclasses.replace(
        grid, rewards=3.0 * grid.rewards, final_values=3.0 * grid.final_values + 2.0
    )
    expected = np.where(grid.mask, 3.0 * baseline(grid) + 2.0, 0.0)
    assert baseline(moved) == pytest.approx(expected)


@given(seed=SEEDS)
@pytest.mark.parametrize("name", BASELINES)
def test_baselines_follow_a_permutation_and_are_zero_behind_the_last_turn(build_grid, name, seed):
    grid = build_grid(seed)
    assert (BASELINES[name](grid, 0.9)[~grid.mask] == 0.0).all()
    order = np.random.default_rng(seed).permutation(len(grid.rewards))
    fields = ("rewards", "lengths", "groups", "final_values", "values", "states")
    shuffled = TurnGrid(**{field: getattr(grid, field)[order] for field in fields})
    got, expected = BASELINES[name](shuffled, 0.9), BASELINES[name](grid, 0.9)[order]
    assert got == pytest.approx(expected, abs=1e-12)


@given(seed=SEEDS)
def test_the_others_baseline_does_not_know_the_own_return(build_grid, seed):
    grid = build_grid(seed)
    rewards = grid.rewards.copy()
    rewards[0, 0] += 5.0
    changed = dataclasses.replace(grid, rewards=rewards)
    assert rloo(changed)[0] == pytest.approx(rloo(grid)[0])
    assert rloo(changed)[2:, 0] != pytest.approx(rloo(grid)[2:, 0])


@given(seed=SEEDS, gamma=st.floats(0.5, 1.0))
def test_a_state_expects_the_mean_of_what_followed_it_in_the_group(build_grid, seed, gamma):
    grid = build_grid(seed)
    got, to_go = state_group(grid, gamma), returns_to_go(grid, gamma)
    turns = [tuple(turn) for turn in np.argwhere(grid.mask)]
    for i, h in turns:
        same = [
            to_go[j, k]
            for j, k in turns
            if grid.groups[j] == grid.groups[i] and grid.states[j, k] == grid.states[i, h]
        ]
        assert got[i, h] == pytest.approx(np.mean(same))


@given(seed=SEEDS, gamma=st.floats(0.0, 1.0))
def test_returns_to_go_equal_the_sum_written_out(build_grid, seed, gamma):
    grid = build_grid(seed)
    got = returns_to_go(grid, gamma)
    for i, n in enumerate(grid.lengths):
        chain = [*grid.rewards[i, :n], grid.final_values[i]]
        for h in range(n):
            expected = sum(gamma**k * x for k, x in enumerate(chain[h:]))
            assert got[i, h] == pytest.approx(expected)
    assert (got[~grid.mask] == 0.0).all()


def test_who_has_no_sibling_and_what_was_seen_once_expect_just_what_came():
    grid = outcomes([1.0, 0.25], [0, 1], states=np.array([[0, 1], [0, 2]]))
    for baseline in (rloo, group_mean, state_group):
        assert baseline(grid) == pytest.approx(np.array([[1.0, 1.0], [0.25, 0.25]]))


def test_what_a_baseline_needs_and_does_not_find_is_an_error():
    grid = outcomes([1.0, 0.0], [0, 0])
    with pytest.raises(ValueError, match="needs a critic"):
        critic(grid)
    with pytest.raises(ValueError, match="needs the states"):
        state_group(grid)


@pytest.mark.parametrize(("name", "factor"), [("rloo", 1.0), ("group_mean", 2 / 3), ("none", 1.0)])
def test_the_expected_gradient_keeps_its_direction(name, factor):
    """Enumerate every group of three draws from a two-armed softmax bandit."""
    probability, rewards = np.array([0.3, 0.7]), np.array([1.0, 0.2])
    score = np.eye(2) - probability
    exact = sum(probability[a] * rewards[a] * score[a] for a in range(2))
    expected = np.zeros(2)
    for actions in map(list, itertools.product(range(2), repeat=3)):
        grid = outcomes(rewards[actions], [0, 0, 0], turns=1)
        advantages = grid.returns - BASELINES[name](grid, 1.0)[:, 0]
        expected += np.prod(probability[actions]) * (advantages @ score[actions]) / 3
    assert expected == pytest.approx(factor * exact)
