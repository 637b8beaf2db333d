"""Critics: what they converge to, and what they cannot know."""

import numpy as np
import pytest

from rl.credit_bench import critics
from rl.credit_bench.environments import build_environment, door_turns
from rl.credit_bench.exact import evaluate, uniform_policy
from rl.credit_bench.layered_process import join, sample_episodes

FITS = {"monte_carlo": critics.monte_carlo, "temporal": critics.temporal, "linear": critics.linear}


def sampled(name, horizon, count, seed=0):
    process = build_environment(name, horizon)
    policy = uniform_policy(process)
    episodes = sample_episodes(process, policy[None], count, np.random.default_rng(seed))
    return evaluate(process, policy), episodes


def error_of(table, truth, episodes):
    values = critics.values_of(table, truth.process, episodes)
    best = critics.values_of(critics.exact(truth), truth.process, episodes)
    return float(np.sqrt(np.mean((values - best)[episodes.mask] ** 2)))


@pytest.mark.parametrize("name", ["KeyDoor", "VarLen", "DelayedReveal(5)"])
@pytest.mark.parametrize("fit", FITS)
def test_a_critic_comes_close_to_the_best_that_its_views_allow(name, fit):
    truth, earlier = sampled(name, 20, 20_000)
    _, fresh = sampled(name, 20, 500, seed=1)
    constant = np.full((20, truth.process.num_views, 1), earlier.outcomes.mean())
    error = error_of(FITS[fit](truth.process, earlier), truth, fresh)
    assert error < 0.35 * error_of(constant, truth, fresh)


def test_values_backward_change_less_by_chance_than_mean_outcomes():
    truth, earlier = sampled("KeyDoor", 200, 256)
    _, fresh = sampled("KeyDoor", 200, 256, seed=1)
    quiet = np.delete(np.arange(199), door_turns(200))

    def chance_changes(table):
        return np.diff(critics.values_of(table, truth.process, fresh))[:, quiet].std()

    backward = chance_changes(critics.temporal(truth.process, earlier))
    assert backward < 0.4 * chance_changes(critics.monte_carlo(truth.process, earlier))


def test_what_was_never_seen_gets_the_mean_of_its_view_or_of_all():
    truth, earlier = sampled("KeyDoor", 20, 3)
    table = critics.monte_carlo(truth.process, earlier)
    seen = np.zeros(table.size, bool)
    seen[critics.cell_numbers(truth.process, earlier)] = True
    seen = seen.reshape(table.shape)
    nobody = ~seen.any(axis=2)
    assert (table[nobody] == earlier.outcomes.mean()).all()
    first = np.unique(earlier.contexts[:, 0])
    assert len(first) < truth.process.num_contexts
    assert np.delete(table[0, 0], first) == pytest.approx(earlier.outcomes.mean())
    assert table.max() == earlier.outcomes.max()


def test_linear_values_are_odds():
    truth, earlier = sampled("Ladder", 100, 64)
    table = critics.linear(truth.process, earlier)
    assert table.min() >= 0
    assert table.max() <= 1


def test_policies_side_by_side_have_critics_of_their_own():
    process = build_environment("KeyDoor", 30)
    good = np.tile([0.1, 0.9], (30, 1))
    policies = np.stack([uniform_policy(process), good])
    episodes = sample_episodes(process, policies, 400, np.random.default_rng(0))
    tables = critics.fit_linear(process, critics.Evidence.gather(process, episodes, 2))
    alone = critics.linear(process, episodes.select(slice(400, None)))
    assert np.allclose(tables[1], alone)
    assert tables[1][0, 0, 0] > tables[0][0, 0, 0] + 0.3


def test_older_evidence_counts_less():
    truth, earlier = sampled("KeyDoor", 20, 64)
    evidence = critics.Evidence.gather(truth.process, earlier, 1)
    later = evidence.after(evidence, keep=0.5)
    assert np.allclose(later.counts, 1.5 * evidence.counts)
    assert np.allclose(later.successes, 1.5 * evidence.successes)


def test_joined_batches_are_fit_as_one():
    truth, earlier = sampled("KeyDoor", 20, 64)
    parts = [earlier.select(slice(20)), earlier.select(slice(20, None))]
    joined = critics.monte_carlo(truth.process, join(parts))
    assert np.array_equal(joined, critics.monte_carlo(truth.process, earlier))


def test_added_errors_are_as_large_and_as_smooth_as_asked():
    noise = critics.ar1_noise((400, 200), 0.2, 0.5, np.random.default_rng(0))
    assert noise.std() == pytest.approx(0.2, rel=0.03)
    assert np.corrcoef(noise[:, :-1].ravel(), noise[:, 1:].ravel())[0, 1] == pytest.approx(
        0.5, abs=0.02
    )
    process = build_environment("KeyDoor(0.2)", 30)
    assert process.critic_noise == 0.2
    assert build_environment("DelayedReveal(7, 0.1)", 30).critic_noise == 0.1
