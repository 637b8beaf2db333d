"""Temporal rules: the double sum, the limits of lambda, segments, shaping, length-adaptive."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rl.baseline import none
from rl.temporal import LengthAdaptive, gae, lambda_of_trajectory, outcome, reward_to_go, surprises
from rl.turn_grid import TurnGrid

SEEDS = st.integers(0, 10_000)
SHARES = st.floats(0.0, 1.0)


def double_sum(grid, baseline, lam, gamma):
    """The definition of the generalized advantage, trajectory by trajectory."""
    advantages = np.zeros_like(grid.rewards)
    for i, n in enumerate(grid.lengths):
        values = [*baseline[i, :n], grid.final_values[i]]
        delta = [grid.rewards[i, h] + gamma * values[h + 1] - values[h] for h in range(n)]
        for h in range(n):
            advantages[i, h] = sum((gamma * lam) ** (k - h) * delta[k] for k in range(h, n))
    return advantages


def test_a_hand_computed_trajectory():
    grid = TurnGrid(
        rewards=np.array([[0.0, 0.0, 1.0]]),
        lengths=np.array([3]),
        groups=np.array([0]),
        final_values=np.array([0.0]),
    )
    baseline = np.array([[0.5, 0.6, 0.2]])
    # delta = .1, -.4, .8
    assert gae(grid, baseline, 0.5)[0] == pytest.approx([0.1 - 0.2 + 0.2, -0.4 + 0.4, 0.8])
    assert outcome(grid, baseline)[0] == pytest.approx([0.5, 0.4, 0.8])


@given(seed=SEEDS, lam=SHARES, gamma=SHARES)
def test_the_recursion_equals_the_double_sum(build_grid, seed, lam, gamma):
    grid = build_grid(seed)
    got = gae(grid, grid.values, lam, gamma)
    assert got == pytest.approx(double_sum(grid, grid.values, lam, gamma), abs=1e-12)
    assert (got[~grid.mask] == 0.0).all()


@given(seed=SEEDS, gamma=SHARES)
def test_lambda_one_is_the_return_to_go_and_lambda_zero_the_next_surprise(build_grid, seed, gamma):
    grid = build_grid(seed)
    full = reward_to_go(grid, grid.values, gamma=gamma)
    assert gae(grid, grid.values, 1.0, gamma) == pytest.approx(full, abs=1e-12)
    assert gae(grid, grid.values, 0.0, gamma) == pytest.approx(surprises(grid, grid.values, gamma))


@given(seed=SEEDS)
def test_the_surprises_of_a_trajectory_add_up_to_its_return_minus_the_first_value(build_grid, seed):
    grid = build_grid(seed)
    total = surprises(grid, grid.values).sum(axis=1)
    assert total == pytest.approx(grid.returns - grid.values[:, 0])


@given(seed=SEEDS)
def test_with_an_outcome_alone_the_return_to_go_is_the_outcome(build_grid, seed):
    grid = build_grid(seed, outcome_only=True)
    baseline = np.where(grid.mask, 0.3, 0.0)
    assert reward_to_go(grid, baseline) == pytest.approx(outcome(grid, baseline))


@given(seed=SEEDS, lam=SHARES, gamma=SHARES)
def test_a_shaping_potential_is_a_second_baseline(build_grid, seed, lam, gamma):
    """GAE(V; r + F) = GAE(V + potential; r), F_h = gamma potential_{h+1} - potential_h."""
    grid = dataclasses.replace(build_grid(seed), final_values=np.zeros(6))
    potential = np.where(grid.mask, np.random.default_rng(seed + 1).normal(size=(6, 7)), 0.0)
    following = np.zeros_like(potential)
    following[:, :-1] = potential[:, 1:]
    shaping = np.where(grid.mask, gamma * following - potential, 0.0)
    shaped = dataclasses.replace(grid, rewards=grid.rewards + shaping)
    got = gae(shaped, grid.values, lam, gamma)
    assert got == pytest.approx(gae(grid, grid.values + potential, lam, gamma), abs=1e-12)


@given(seed=SEEDS, lam=SHARES)
def test_a_cut_that_is_valued_by_the_critic_hides_only_what_came_after_it(build_grid, seed, lam):
    """Cut before turn 3 with V there: the surprises before the cut are the same."""
    grid = build_grid(seed)
    whole = surprises(grid, grid.values)
    lengths = np.minimum(grid.lengths, 3)
    is_cut = grid.lengths > 3
    cut = dataclasses.replace(
        grid,
        rewards=np.where(np.arange(7) < lengths[:, None], grid.rewards, 0.0),
        lengths=lengths,
        final_values=np.where(is_cut, grid.values[:, 3], grid.final_values),
    )
    assert surprises(cut, cut.values)[:, :3] == pytest.approx(whole[:, :3])
    terminal = dataclasses.replace(cut, final_values=np.where(is_cut, 0.0, grid.final_values))
    if is_cut.any():
        wrong = surprises(terminal, cut.values)[is_cut, 2]
        assert (np.abs(wrong - whole[is_cut, 2]) > 0).all()


def test_a_length_adaptive_window_is_a_share_of_the_turns():
    grid = TurnGrid(
        rewards=np.zeros((3, 100)),
        lengths=np.array([1, 10, 100]),
        groups=np.zeros(3, dtype=np.int64),
        final_values=np.zeros(3),
    )
    lam = lambda_of_trajectory(grid, LengthAdaptive(alpha=0.5))
    assert lam == pytest.approx([0.0, 0.8, 0.98])
    assert lambda_of_trajectory(grid, 0.95) == pytest.approx([0.95] * 3)


@given(seed=SEEDS)
def test_each_trajectory_decays_at_its_own_lambda(build_grid, seed):
    grid = build_grid(seed)
    rule = LengthAdaptive(alpha=1.5)
    got = gae(grid, grid.values, rule)
    for i, lam in enumerate(lambda_of_trajectory(grid, rule)):
        assert got[i] == pytest.approx(double_sum(grid, grid.values, lam, 1.0)[i], abs=1e-12)


def test_without_a_baseline_and_with_lambda_one_every_turn_gets_the_return(build_grid):
    grid = build_grid(3, outcome_only=True)
    expected = np.where(grid.mask, grid.returns[:, None], 0.0)
    assert gae(grid, none(grid)) == pytest.approx(expected)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan")])
def test_an_alpha_that_gives_no_window_is_refused(alpha):
    with pytest.raises(ValueError, match="alpha"):
        LengthAdaptive(alpha=alpha)
