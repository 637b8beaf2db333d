"""What is measured of an estimator, on advantages of which everything is known."""

import numpy as np
import pytest

from rl.credit_bench import measures
from rl.credit_bench.comparison import compare
from rl.credit_bench.environments import build_environment
from rl.credit_bench.estimators import ESTIMATORS
from rl.credit_bench.exact import evaluate, uniform_policy
from rl.credit_bench.layered_process import sample_episodes
from rl.credit_bench.measures import Scored, measure


@pytest.fixture(scope="module")
def batch():
    """KeyDoor of 40 turns: the truth and 3000 episodes."""
    process = build_environment("KeyDoor", 40)
    truth = evaluate(process, uniform_policy(process))
    return truth, sample_episodes(process, truth.policy[None], 3000, np.random.default_rng(0))


def scored(episodes, advantages):
    return Scored(episodes=episodes, advantages=advantages, weights=np.ones(episodes.states.shape))


def test_the_truth_itself_is_without_fault(batch):
    truth, episodes = batch
    found = measure(truth, [scored(episodes, 3.0 * truth.advantages_of(episodes))])
    assert found.corr == pytest.approx(1.0)
    assert found.corr_within == pytest.approx(1.0)
    assert found.mse == pytest.approx(0.0, abs=1e-9)
    assert found.cosine > 0.98


def test_noise_is_variance_and_what_follows_the_state_is_bias(batch):
    truth, episodes = batch
    true = truth.advantages_of(episodes)
    size = true.std()
    noise = np.random.default_rng(1).normal(size=true.shape) * size
    found = measure(truth, [scored(episodes, true + noise)])
    assert found.variance == pytest.approx(1.0, rel=0.05)
    assert found.bias < 0.02
    offset = np.where(np.arange(40) % 2, size, -size)
    found = measure(truth, [scored(episodes, true + offset)])
    assert found.bias == pytest.approx(1.0, rel=0.05)
    assert found.variance == pytest.approx(0.0, abs=1e-9)


def test_the_mean_square_is_what_the_correlation_says(batch):
    truth, episodes = batch
    outcome = np.broadcast_to(episodes.outcomes[:, None], (3000, 40)) - 1 / 16
    found = measure(truth, [scored(episodes, outcome)])
    assert found.mse == pytest.approx(1 / found.corr**2 - 1, rel=0.05)
    assert found.bias > 1.0  # what the state is worth
    assert found.corr_within == pytest.approx(0.0, abs=1e-9)


def test_an_estimate_that_does_not_go_with_the_truth_has_no_scale(batch):
    truth, episodes = batch
    found = measure(truth, [scored(episodes, -truth.advantages_of(episodes))])
    assert found.mse is None
    assert found.corr == pytest.approx(-1.0)


def test_pivotal_turns_are_told_from_others_by_size(batch):
    truth, episodes = batch
    assert measures.pivot_auroc(truth, scored(episodes, truth.advantages_of(episodes))) == 1.0
    noise = np.random.default_rng(1).normal(size=(3000, 40))
    assert measures.pivot_auroc(truth, scored(episodes, noise)) == pytest.approx(0.5, abs=0.02)
    assert measures.pivot_auroc(truth, scored(episodes, np.ones((3000, 40)))) == 0.5


def test_a_ladder_has_no_pivotal_turns():
    process = build_environment("Ladder", 30)
    truth = evaluate(process, uniform_policy(process))
    episodes = sample_episodes(process, truth.policy[None], 50, np.random.default_rng(0))
    found = measure(truth, [scored(episodes, truth.advantages_of(episodes))])
    assert found.pivot_auroc is None


def test_the_estimated_gradient_is_that_of_the_mean_log_probability(batch):
    truth, episodes = batch
    few = episodes.select(slice(5))
    advantages = np.random.default_rng(2).normal(size=(5, 40))
    gradient = measures.gradient_of(truth.process, truth.policy, few)
    counts = np.array([True, True, False, True, True])
    found = gradient(advantages, counts).reshape(truth.policy.shape)
    turn = 7
    chosen = few.actions[:, turn]
    expected = (advantages[:, turn] * counts * ((chosen == 1) - 0.5)).sum()
    assert found[turn, 1] == pytest.approx(expected)
    assert np.allclose(found.sum(axis=1), 0.0)


def test_a_short_window_beats_a_broadcast_outcome_at_equal_environment_steps():
    process = build_environment("KeyDoor", 200)
    names = ("rloo", "critic_lambda_1", "tb_gae", "tb_gae_mix")
    found = compare(process, [ESTIMATORS[name] for name in names], batches=3, seed=0)
    corr = {name: found[name].corr for name in names}
    assert corr["rloo"] < corr["critic_lambda_1"] < corr["tb_gae_mix"] < corr["tb_gae"]
    assert found["tb_gae"].cosine > found["rloo"].cosine + 0.1


def test_every_estimator_can_be_measured_in_every_kind_of_process():
    for name in ("KeyDoor(0.1)", "VarLen", "AliasMaze", "Stale"):
        found = compare(build_environment(name, 12), list(ESTIMATORS.values()), 1, seed=0)
        assert set(found) == set(ESTIMATORS)
        assert all(np.isfinite(one.corr) for one in found.values())


def test_branches_pay_for_every_turn_they_take():
    process = build_environment("KeyDoor", 40)
    found = compare(process, [ESTIMATORS["vine"], ESTIMATORS["tb_gae"]], batches=4, seed=0)
    assert found["vine"].cosine < found["tb_gae"].cosine
    assert found["vine"].corr > 0.1


def test_a_stale_sampler_leaves_the_truth_of_the_policy():
    process = build_environment("Stale(1.5)", 30)
    fresh = build_environment("KeyDoor", 30)
    names = [ESTIMATORS["tb_gae/exact"]]
    stale = compare(process, names, batches=4, seed=0)["tb_gae/exact"]
    assert 0.5 < stale.cosine < compare(fresh, names, batches=4, seed=0)["tb_gae/exact"].cosine
