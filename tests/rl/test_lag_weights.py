"""Weights of lags: they find where the signal is, and nothing where there is none."""

import numpy as np
import pytest

from rl.baseline import critic
from rl.lag_weights import FIRST_LAGS, lag_bands, lag_weighted, no_evidence
from rl.temporal import gae
from rl.turn_grid import TurnGrid


def random_grid(count=16, most=40, seed=0):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, most + 1, size=count)
    mask = np.arange(most) < lengths[:, None]
    return TurnGrid(
        rewards=np.where(mask, generator.normal(size=(count, most)), 0.0),
        lengths=lengths,
        groups=np.arange(count) // 4,
        final_values=generator.normal(size=count),
        values=np.where(mask, generator.normal(size=(count, most)), 0.0),
    )


def test_the_bands_add_up_to_lambda_one():
    grid = random_grid()
    assert np.allclose(lag_bands(grid, grid.values).sum(axis=0), gae(grid, grid.values, 1.0))


def test_the_first_band_is_lambda_zero():
    grid = random_grid()
    assert np.allclose(lag_bands(grid, grid.values)[0], gae(grid, grid.values, 0.0))


def test_a_surprise_is_in_the_band_of_its_distance():
    rewards = np.zeros((1, 40))
    rewards[0, 30] = 1.0
    grid = TurnGrid(
        rewards=rewards,
        lengths=np.array([40]),
        groups=np.zeros(1, np.int64),
        final_values=np.zeros(1),
        values=np.zeros((1, 40)),
    )
    bands = lag_bands(grid, grid.values)[:, 0]
    for turn in range(31):
        band = int(np.searchsorted(FIRST_LAGS, 30 - turn, side="right")) - 1
        assert bands[:, turn].tolist() == [float(b == band) for b in range(len(FIRST_LAGS))]
    assert not bands[:, 31:].any()


def delayed_steps(delay, steps, generator, choices=20, count=64):
    """Give the evidence of steps in which a turn's choice pays or costs `delay` turns later."""
    evidence = no_evidence()
    horizon = choices + delay
    for _ in range(steps):
        actions = generator.choice([-1.0, 1.0], size=(count, horizon))
        rewards = generator.normal(size=(count, horizon))
        rewards[:, delay:] += actions[:, : horizon - delay]
        grid = TurnGrid(
            rewards=rewards,
            lengths=np.full(count, horizon),
            groups=np.arange(count) // 4,
            final_values=np.zeros(count),
            values=np.zeros((count, horizon)),
        )

        def gradient(advantages, rows, actions=actions):
            return (advantages * actions)[rows].sum(axis=0)

        _, evidence = lag_weighted(grid, critic(grid), gradient, evidence)
    return evidence


@pytest.mark.parametrize(("delay", "band"), [(0, 0), (2, 1), (10, 2), (40, 3)])
def test_the_band_in_which_consequences_show_gets_the_weight(delay, band):
    evidence = delayed_steps(delay, 20, np.random.default_rng(0))
    weights, held = evidence.weights(), evidence.energy * evidence.weights() ** 2
    assert held.argmax() == band
    assert weights[band] > 0.4
    assert np.delete(held, band).sum() < 0.1 * held[band]


def test_the_agreement_is_the_whole_gradients_share_without_bias():
    generator = np.random.default_rng(0)
    signal = generator.normal(size=(len(FIRST_LAGS), 300))
    agreement, energy = [], []
    for _ in range(2000):
        halves = signal / 2 + generator.normal(size=(2, *signal.shape))
        step = no_evidence().updated(*halves)
        agreement.append(step.agreement)
        energy.append(step.energy)
    expected = signal @ signal.sum(axis=0)
    error = np.std(agreement, axis=0) / np.sqrt(2000)
    assert (np.abs(np.mean(agreement, axis=0) - expected) < 4 * error).all()
    noise = 2 * 300
    assert np.mean(energy, axis=0) == pytest.approx((signal**2).sum(axis=1) + noise, rel=0.02)


def evidence_of(steps):
    """Give the evidence of steps with given gradients of the first two bands, in two dimensions."""
    evidence = no_evidence()
    for near, far in steps:
        first = np.zeros((len(FIRST_LAGS), 2))
        first[:2] = near, far
        evidence = evidence.updated(first, first)
    return evidence


def test_until_something_agrees_every_lag_counts():
    everything = [1.0] * len(FIRST_LAGS)
    assert no_evidence().weights().tolist() == everything
    assert evidence_of([((1, 0), (0, 1))]).weights().tolist() == everything
    generator = np.random.default_rng(0)
    evidence = no_evidence()
    for _ in range(6):
        half = generator.normal(size=(len(FIRST_LAGS), 50))
        evidence = evidence.updated(half, -half)
    assert evidence.weights().tolist() == everything


def test_a_band_that_always_agrees_gets_the_whole_weight():
    weights = evidence_of([((1, 0), (0, 1))] * 4).weights()
    assert weights.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_a_band_is_shrunk_by_how_uncertain_its_agreement_is():
    steady = evidence_of([((1, 0), (0, 1))] * 6).weights()
    shaky = evidence_of([((1, 0), (0, 1)), ((1, 0), (0, 0.2))] * 3).weights()
    assert shaky[0] == steady[0] == 1.0
    assert 0.0 < shaky[1] < 1.0
    one_of_many = evidence_of([((1, 0), (0, 1))] + [((1, 0), (0, 0))] * 15).weights()
    assert one_of_many[1] == 0.0


def test_one_group_cannot_measure_itself():
    grid = random_grid(count=4)
    with pytest.raises(ValueError, match="two groups"):
        lag_weighted(grid, grid.values, lambda advantages, rows: advantages[0], no_evidence())
