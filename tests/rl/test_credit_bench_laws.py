"""Closed forms against finite sums, and both against what is measured."""

import numpy as np
import pytest

from rl.baseline import rloo
from rl.credit_bench import critics, laws
from rl.credit_bench.environments import build_environment
from rl.credit_bench.estimators import ESTIMATORS, GROUP_SIZE, turn_grid
from rl.credit_bench.exact import evaluate, uniform_policy
from rl.credit_bench.layered_process import sample_episodes
from rl.temporal import gae, outcome


def truth_of(name, horizon):
    process = build_environment(name, horizon)
    return evaluate(process, uniform_policy(process))


@pytest.fixture(scope="module")
def key_door():
    """KeyDoor of 300 turns, 4096 episodes and the values of the exact critic."""
    truth = truth_of("KeyDoor", 300)
    episodes = sample_episodes(truth.process, truth.policy[None], 4096, np.random.default_rng(0))
    values = critics.values_of(critics.exact(truth), truth.process, episodes)
    return truth, episodes, turn_grid(truth.process, episodes, values)


def correlation(truth, episodes, advantages):
    return np.corrcoef(advantages.ravel(), truth.advantages_of(episodes).ravel())[0, 1]


@pytest.mark.parametrize("lam", [0.0, 0.8, 0.95, 0.98])
def test_gae_with_the_exact_critic_correlates_as_the_law_says(key_door, lam):
    truth, episodes, grid = key_door
    measured = correlation(truth, episodes, gae(grid, grid.values, lam))
    assert measured == pytest.approx(laws.gae_correlation(truth, lam), rel=0.05)
    assert measured == pytest.approx(np.sqrt(1 - lam**2), rel=0.05)


def test_a_critic_as_a_baseline_alone_is_worth_the_root_of_two(key_door):
    truth, episodes, grid = key_door
    measured = correlation(truth, episodes, gae(grid, grid.values, 1.0))
    assert measured == pytest.approx(laws.gae_correlation(truth, 1.0), rel=0.05)
    assert measured == pytest.approx(np.sqrt(2 / 300), rel=0.05)


def test_a_broadcast_outcome_correlates_as_one_over_the_root_of_the_horizon(key_door):
    truth, episodes, grid = key_door
    measured = correlation(truth, episodes, outcome(grid, rloo(grid)))
    assert measured == pytest.approx(laws.broadcast_correlation(truth, GROUP_SIZE), rel=0.05)
    assert measured == pytest.approx(np.sqrt((1 - 1 / GROUP_SIZE) / 300), rel=0.05)


@pytest.mark.parametrize(("lam", "rho"), [(0.0, 0.0), (0.95, 0.0), (0.95, 0.9)])
def test_an_erring_critic_costs_what_the_law_says(key_door, lam, rho):
    truth, episodes, grid = key_door
    noise = critics.ar1_noise(grid.values.shape, 0.05, rho, np.random.default_rng(1))
    noise[:, 0] = 0.0  # gae reads no value before the first
    measured = correlation(truth, episodes, gae(grid, grid.values + noise, lam))
    law = laws.noisy_gae_correlation(truth, lam, 0.05, rho)
    assert measured == pytest.approx(law, rel=0.05)


def test_the_horizon_costs_the_equal_mix_less_than_a_baseline_and_more_than_a_window():
    estimators = {"rloo": -0.5, "critic_lambda_1": -0.5, "equal_mix": -0.11, "tb_gae": -0.01}
    for name, expected in estimators.items():
        by_horizon = {
            horizon: laws.correlation_law(truth_of("KeyDoor", horizon), ESTIMATORS[name])
            for horizon in (100, 300, 1000)
        }
        assert laws.slope_in_log_horizon(by_horizon) == pytest.approx(expected, abs=0.01)


def test_the_verifiers_coin_takes_its_share_of_a_baselines_gain():
    truth = truth_of("Ladder", 300)
    law = np.sqrt(truth.choice_share / 300 * 2 / (1 + truth.verifier_share))
    assert laws.gae_correlation(truth, 1.0) == pytest.approx(law, rel=0.02)
    assert truth.choice_share == pytest.approx(0.19, abs=0.01)
    assert truth.verifier_share == pytest.approx(0.7, abs=0.01)


@pytest.mark.parametrize("name", ["DelayedReveal", "VarLen", "Stale"])
def test_where_the_law_does_not_hold_none_is_given(name):
    assert laws.correlation_law(truth_of(name, 100), ESTIMATORS["tb_gae"]) is None


def test_rules_without_a_closed_form_have_none():
    truth = truth_of("KeyDoor", 100)
    for name in ("tb_gae_mix", "gigpo", "sao", "lag_weighted"):
        assert laws.correlation_law(truth, ESTIMATORS[name]) is None, name


def test_a_slope_needs_two_long_horizons_and_positive_values():
    assert laws.slope_in_log_horizon({10: 1.0, 100: 1.0}) is None
    assert laws.slope_in_log_horizon({100: 0.1, 1000: -0.1}) is None
    assert laws.slope_in_log_horizon({10: 9.0, 100: 0.1, 1000: 0.01}) == pytest.approx(-1.0)
