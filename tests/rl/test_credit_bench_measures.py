"""What is measured of an estimator, on advantages of which everything is known."""

from dataclasses import replace

import numpy as np
import pytest

from rl.advantage import combine
from rl.baseline import returns_to_go
from rl.credit_bench import comparison, critics, measures
from rl.credit_bench.comparison import EPISODES_PER_BATCH, compare
from rl.credit_bench.environments import build_environment
from rl.credit_bench.estimators import ESTIMATORS, Memory, estimate, turn_grid
from rl.credit_bench.exact import evaluate, uniform_policy
from rl.credit_bench.layered_process import sample_episodes
from rl.credit_bench.measures import Scored, correlation, measure
from rl.temporal import gae


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


def test_the_spread_of_a_few_estimates_is_no_bias(batch):
    truth, episodes = batch
    few = episodes.select(slice(24))
    true = truth.advantages_of(few)
    noise = np.random.default_rng(1).normal(size=true.shape) * true.std()
    found = measure(truth, [scored(few, true + noise)])
    assert found.variance > 0.7
    assert found.bias < 0.03  # the square of the mean of a dozen has 1 / 12 of their variance


def test_the_mean_square_is_what_the_correlation_says(batch):
    truth, episodes = batch
    outcome = np.broadcast_to(episodes.outcomes[:, None], (3000, 40)) - 1 / 16
    found = measure(truth, [scored(episodes, outcome)])
    assert found.mse == pytest.approx(1 / found.corr**2 - 1, rel=0.05)
    assert found.bias > 1.0  # what the state is worth
    assert found.corr_within == 0.0


def test_an_estimate_that_does_not_go_with_the_truth_has_no_scale(batch):
    truth, episodes = batch
    found = measure(truth, [scored(episodes, -truth.advantages_of(episodes))])
    assert found.mse is None
    assert found.corr == pytest.approx(-1.0)


def test_pivotal_turns_are_told_from_others_by_size(batch):
    truth, episodes = batch
    assert measures.pivot_auroc(truth, scored(episodes, truth.advantages_of(episodes))) == 1.0
    large = np.abs(truth.advantages_of(episodes)) > 0.1  # all doors but the first
    assert measures.pivot_auroc(truth, scored(episodes, 1.0 * large)) == 1.0
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


def test_the_ratio_of_a_turn_multiplies_its_gradient(batch):
    truth, episodes = batch
    true = truth.advantages_of(episodes)
    weights = np.random.default_rng(3).uniform(0.2, 4.0, size=true.shape) * (np.arange(40) > 10)
    weighted = Scored(episodes=episodes, advantages=true, weights=weights)
    assert measures.cosine(truth, weighted) == pytest.approx(
        measures.cosine(truth, scored(episodes, true * weights))
    )
    assert measures.cosine(truth, weighted) < measures.cosine(truth, scored(episodes, true)) - 0.01


def test_a_short_window_beats_a_broadcast_outcome_at_equal_environment_steps():
    process = build_environment("KeyDoor", 200)
    names = ("rloo", "critic_lambda_1", "tb_gae", "tb_gae_mix")
    found = compare(process, [ESTIMATORS[name] for name in names], batches=3, seed=0)
    corr = {name: found[name].corr for name in names}
    assert corr["rloo"] < corr["critic_lambda_1"] < corr["tb_gae"] < corr["tb_gae_mix"]
    assert found["tb_gae"].cosine > found["rloo"].cosine + 0.1


def test_the_coin_of_the_verifier_does_not_cost_a_critic_that_is_right_its_trust():
    """It is 70 % of the ladder's variance, so that nobody can explain more than the rest."""
    process = build_environment("Ladder", 100)
    names = ("critic_lambda_1", "lambda_0.98", "tb_gae_mix")
    found = compare(process, [ESTIMATORS[name] for name in names], batches=3, seed=0)
    corr = {name: found[name].corr for name in names}
    assert corr["tb_gae_mix"] > 1.3 * corr["lambda_0.98"] > 1.3 * corr["critic_lambda_1"]


def test_what_was_learned_of_earlier_batches_counts_in_the_next():
    process = build_environment("KeyDoor", 100)
    names = ("critic_lambda_1", "lag_weighted")
    alone, several = (
        compare(process, [ESTIMATORS[name] for name in names], batches, seed=0)
        for batches in (1, 4)
    )
    assert alone["lag_weighted"].corr == pytest.approx(alone["critic_lambda_1"].corr)
    assert several["lag_weighted"].corr > 3 * several["critic_lambda_1"].corr


def test_a_critic_is_trusted_by_its_errors_on_several_batches(build_grid):
    """What a batch says against it is less than what the one before said for it."""
    grid = build_grid(3, outcome_only=True)
    right = replace(grid, values=returns_to_go(grid))
    wrong = replace(grid, values=0.6 - 0.2 * returns_to_go(grid))
    mix, gradient = ESTIMATORS["tb_gae_mix"], no_gradient
    alone, _ = estimate(mix, wrong, gradient, Memory())
    _, memory = estimate(mix, right, gradient, Memory())
    remembered, _ = estimate(mix, wrong, gradient, memory)
    assert not varies_within_a_trajectory(alone, grid)
    assert varies_within_a_trajectory(remembered, grid)


def no_gradient(advantages, counts):
    raise AssertionError("a gate does not ask for it")


def varies_within_a_trajectory(advantages, grid):
    return any(
        np.ptp(row[:length]) > 0 for row, length in zip(advantages, grid.lengths, strict=True)
    )


def test_every_estimator_can_be_measured_in_every_kind_of_process():
    for name in ("KeyDoor(0.1)", "VarLen", "AliasMaze", "Stale"):
        found = compare(build_environment(name, 12), list(ESTIMATORS.values()), 1, seed=0)
        assert set(found) == set(ESTIMATORS)
        assert all(np.isfinite(one.corr) for one in found.values())


def test_a_critic_pays_for_its_episodes_and_judges_others(monkeypatch):
    parts = {}

    def fit(process, earlier):
        parts["earlier"] = earlier
        return np.zeros((process.horizon, process.num_views, 1))

    def judge(_truth, batches):
        parts[len(parts)] = batches[0].episodes

    monkeypatch.setattr(critics, "linear", fit)
    monkeypatch.setattr(comparison, "measure", judge)
    names = [ESTIMATORS["rloo"], ESTIMATORS["tb_gae"]]
    compare(build_environment("KeyDoor", 40), names, batches=1, seed=0)
    earlier, everything, judged = parts.values()
    assert len(everything.outcomes) == EPISODES_PER_BATCH
    assert len(earlier.outcomes) + len(judged.outcomes) == EPISODES_PER_BATCH
    assert not (earlier.contexts[:, None] == judged.contexts).all(axis=2).any()


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


def test_the_more_the_sampler_differs_the_more_the_gradient_is_biased():
    names = [ESTIMATORS["tb_gae/exact"], ESTIMATORS["rloo"]]
    found = [compare(build_environment(f"Stale({x})", 30), names, 6, seed=0) for x in (0, 1, 3)]
    for name in ("tb_gae/exact", "rloo"):
        cosines = [by_name[name].cosine for by_name in found]
        assert cosines[0] > cosines[1] + 0.1 > cosines[2] + 0.2
    biases = [by_name["tb_gae/exact"].bias for by_name in found]
    assert biases[0] < 0.05
    assert biases[2] > 0.4


def test_states_that_only_look_equal_bias_a_baseline_over_them():
    process = build_environment("AliasMaze", 30)
    told_apart = replace(process, anchors=process.views)
    truth = evaluate(process, uniform_policy(process))
    episodes = sample_episodes(process, truth.policy[None], 4096, np.random.default_rng(0))
    found = {}
    for seen in (process, told_apart):
        grid = turn_grid(seen, episodes, None)
        one_group = replace(grid, groups=np.zeros(4096, np.int64))
        advantages, _ = combine(one_group, ESTIMATORS["gagpo"].rule.terms)
        found[seen is process] = measure(truth, [scored(episodes, advantages)])
    aliased, apart = found[True], found[False]
    assert aliased.bias > 1.5 * apart.bias
    assert aliased.cosine < 0.985 < apart.cosine


def test_credit_that_stops_at_a_segment_misses_what_its_notes_were_worth():
    process = build_environment("Compact(8)", 96)
    truth = evaluate(process, uniform_policy(process))
    episodes = sample_episodes(process, truth.policy[None], 4096, np.random.default_rng(0))
    values = critics.values_of(critics.exact(truth), process, episodes)
    stitched = gae(turn_grid(process, episodes, values), values, 0.95)
    cut = np.zeros_like(stitched)
    for first in range(0, 96, 12):
        turns = slice(first, first + 12)
        segment = replace(
            turn_grid(process, episodes, values),
            rewards=np.where(np.arange(96) == 95, episodes.outcomes[:, None], 0.0)[:, turns],
            lengths=np.full(4096, 12),
            values=values[:, turns],
            states=None,
        )
        cut[:, turns] = gae(segment, values[:, turns], 0.95)
    true = truth.advantages_of(episodes)
    assert correlation(scored(episodes, stitched), true) > 2 * correlation(
        scored(episodes, cut), true
    )
