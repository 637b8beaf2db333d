"""Scales: what they divide by, what they leave alone, and the state that one of them carries."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rl.baseline import group_mean
from rl.scale import EPSILON, SCALES, RunningSquare, batch_std, ema_rms, group_std
from rl.temporal import outcome

SEEDS = st.integers(0, 10_000)
FRESH = RunningSquare()


@given(seed=SEEDS)
def test_the_group_standard_deviation_is_the_unbiased_one_of_the_returns(build_grid, seed):
    grid = build_grid(seed)
    advantages = outcome(grid, group_mean(grid))
    scaled, state = group_std(grid, advantages, FRESH)
    for group in (0, 1):
        rows = grid.groups == group
        divisor = np.std(grid.returns[rows], ddof=1) + EPSILON
        assert scaled[rows] == pytest.approx(advantages[rows] / divisor)
    assert state is FRESH


@given(seed=SEEDS)
def test_a_longer_trajectory_does_not_weigh_more_in_its_group(build_grid, seed):
    grid = build_grid(seed, outcome_only=True)
    longer = np.zeros((6, 20))
    longer[:, 13:] = grid.rewards  # thirteen more turns for everyone, with the same outcomes
    stretched = dataclasses.replace(
        grid, rewards=longer, lengths=grid.lengths + 13, values=None, states=None
    )
    short = group_std(grid, outcome(grid, group_mean(grid)), FRESH)[0]
    long = group_std(stretched, outcome(stretched, group_mean(stretched)), FRESH)[0]
    assert long[:, 0] == pytest.approx(short[:, 0])


@pytest.mark.parametrize("name", ["group_std", "batch_std", "ema_rms"])
@given(seed=SEEDS)
def test_scaled_advantages_do_not_know_the_unit_of_the_reward(build_grid, name, seed):
    grid = build_grid(seed)
    tenfold = dataclasses.replace(
        grid, rewards=10 * grid.rewards, final_values=10 * grid.final_values
    )
    plain = SCALES[name](grid, outcome(grid, group_mean(grid)), FRESH)[0]
    large = SCALES[name](tenfold, outcome(tenfold, group_mean(tenfold)), FRESH)[0]
    assert large == pytest.approx(plain, rel=1e-4, abs=1e-4)


def test_advantages_of_equal_siblings_stay_zero_and_those_of_an_only_child_stay(build_grid):
    grid = dataclasses.replace(
        build_grid(0), rewards=np.zeros((6, 7)), final_values=np.full(6, 0.1)
    )
    zero = np.zeros((6, 7))
    for scale in SCALES.values():
        assert (scale(grid, zero, FRESH)[0] == 0).all()
    alone = dataclasses.replace(build_grid(0), groups=np.arange(6))
    advantages = np.where(alone.mask, 0.25, 0.0)
    assert group_std(alone, advantages, FRESH)[0] == pytest.approx(advantages)


@given(seed=SEEDS)
def test_the_batch_scale_counts_turns_and_does_not_centre(build_grid, seed):
    grid = build_grid(seed)
    advantages = np.where(grid.mask, grid.values + 5.0, 0.0)
    scaled, _ = batch_std(grid, advantages, FRESH)
    assert scaled[grid.mask].std() == pytest.approx(1.0, rel=1e-4)
    assert scaled[grid.mask].mean() > 1.0


def test_the_running_scale_brings_the_first_step_to_one_and_then_moves_slowly(build_grid):
    grid = build_grid(1)
    advantages = np.where(grid.mask, 4.0, 0.0)
    scaled, state = ema_rms(grid, advantages, FRESH)
    assert scaled[grid.mask] == pytest.approx(1.0)
    assert state.root == pytest.approx(4.0)
    later, moved = ema_rms(grid, 10 * advantages, state)
    assert 4.0 < moved.root < 40.0
    # (0.9 * 0.1 * 16 + 0.1 * 1600) / (0.9 * 0.1 + 0.1)
    assert moved.root**2 == pytest.approx((0.09 * 16 + 0.1 * 1600) / 0.19)
    assert later[grid.mask] == pytest.approx(40.0 / moved.root)
    assert state == ema_rms(grid, advantages, FRESH)[1]
