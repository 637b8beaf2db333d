"""The benchmark checked against itself: its truth must be true."""

import numpy as np
import pytest

from rl.credit_bench.environments import build_environment, door_turns
from rl.credit_bench.exact import best_success_rate, evaluate, success_rates, uniform_policy
from rl.credit_bench.layered_process import sample_episodes, softmax

ENVIRONMENTS = [
    "KeyDoor",
    "Ladder",
    "DelayedReveal(5)",
    "Recover",
    "AliasMaze",
    "VarLen",
    "VarLen(-0.5)",
    "Compact",
    "Stale",
]


def some_policy(process, seed=0):
    logits = np.random.default_rng(seed).normal(
        size=(process.num_observations, process.num_actions)
    )
    return softmax(logits)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_advantages_average_to_nothing_in_every_state(name):
    process = build_environment(name, 30)
    truth = evaluate(process, some_policy(process))
    assert np.abs(truth.advantages).max() > 0.01
    assert np.abs((truth.action_odds * truth.advantages).sum(-1)).max() < 1e-12


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_parts_of_the_variance_add_up_to_the_variance_of_the_outcome(name):
    process = build_environment(name, 100)
    truth = evaluate(process, some_policy(process))
    parts = truth.start_variance + truth.surprises.sum()
    assert parts == pytest.approx(truth.return_variance, rel=1e-9)
    assert 0 < truth.choices.sum() <= truth.surprises.sum() * (1 + 1e-12)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_values_are_the_mean_outcomes_of_episodes(name):
    process = build_environment(name, 20)
    policy = some_policy(process)
    truth = evaluate(process, policy)
    episodes = sample_episodes(process, policy[None], 20_000, np.random.default_rng(1))
    for turn in (0, 7, 13):
        here = episodes.lengths > turn
        states = episodes.states[here, turn]
        most = np.bincount(states).argmax()
        for action in range(process.num_actions):
            chosen = (states == most) & (episodes.actions[here, turn] == action)
            outcomes = episodes.outcomes[here][chosen]
            expected = truth.values[turn, most] + truth.advantages[turn, most, action]
            error = max(outcomes.std(), 0.01) / np.sqrt(len(outcomes))
            assert abs(outcomes.mean() - expected) < 4 * error


@pytest.mark.parametrize("name", ["KeyDoor", "Ladder", "AliasMaze", "VarLen"])
def test_the_gradient_is_the_slope_of_the_success_rate(name):
    process = build_environment(name, 12)
    logits = np.random.default_rng(2).normal(size=(process.num_observations, 2))
    truth = evaluate(process, softmax(logits))
    step = 1e-5
    for row in range(0, len(logits), 3):
        moved = np.stack([logits, logits])
        moved[:, row, 1] += (step, -step)
        rates = success_rates(process, softmax(moved))
        assert truth.gradient[row, 1] == pytest.approx((rates[0] - rates[1]) / (2 * step), abs=1e-8)


def test_the_success_rates_of_several_policies_are_those_of_each():
    process = build_environment("Recover", 25)
    policies = np.stack([some_policy(process, seed) for seed in range(3)])
    alone = [evaluate(process, policy).success_rate for policy in policies]
    assert success_rates(process, policies) == pytest.approx(alone)
    assert all(rate < best_success_rate(process) for rate in alone)


def test_opening_every_door_is_one_half_each_and_only_doors_have_advantages():
    process = build_environment("KeyDoor", 40)
    truth = evaluate(process, uniform_policy(process))
    assert truth.success_rate == pytest.approx(1 / 16)
    assert set(np.flatnonzero(truth.choices)) == set(door_turns(40))
    assert truth.choice_share == pytest.approx(1.0)


def test_a_delayed_critic_sees_a_failure_so_many_turns_late():
    process = build_environment("DelayedReveal(5)", 60)
    truth = evaluate(process, uniform_policy(process))
    door = int(door_turns(60)[0])
    failed = 1  # at the first door
    seen = truth.view_values[:, failed]
    assert truth.values[door + 1, failed] == 0
    assert (seen[door + 1 : door + 6] > 0).all()
    assert (seen[door + 6 :] == 0).all()


def test_turns_end_where_the_episode_is_over():
    process = build_environment("VarLen", 50)
    policy = uniform_policy(process)
    episodes = sample_episodes(process, policy[None], 300, np.random.default_rng(3))
    assert episodes.lengths.min() < 10
    assert (process.is_over[episodes.final_states] | (episodes.lengths == 50)).all()
    assert not process.is_over[episodes.states[episodes.mask]].any()
    assert not episodes.actions[~episodes.mask].any()


def test_a_lost_note_is_what_the_closing_turn_of_a_segment_is_worth():
    process = build_environment("Compact(2)", 40)
    truth = evaluate(process, uniform_policy(process))
    closing = set(np.flatnonzero(truth.choices)) - set(door_turns(40))
    assert len(closing) == 1
    turn = closing.pop()
    assert turn == 20
    careless, careful = truth.advantages[turn, 0]
    assert careful == pytest.approx(-careless)
    assert truth.values[turn, 0] + careless == pytest.approx(truth.values[turn + 1, 0] / 2)


def test_cells_of_the_maze_look_alike_with_and_without_the_tool():
    process = build_environment("AliasMaze", 20)
    assert process.anchors[0, 4] == process.anchors[0, 5]
    truth = evaluate(process, uniform_policy(process))
    assert truth.values[0, 5] > truth.values[0, 4]  # the second carries the tool


@pytest.mark.parametrize("name", ["Door", "KeyDoor(1,2)", "Ladder(3)", "KeyDoor("])
def test_an_environment_that_does_not_exist_is_refused(name):
    with pytest.raises(ValueError, match=r"no environment|takes"):
        build_environment(name, 30)


def test_too_short_a_horizon_is_refused():
    with pytest.raises(ValueError, match="at least 10 turns"):
        build_environment("KeyDoor", 5)
