"""Advantages against what NeMo-RL, RAGEN and slime answered (oracles/record_*.py ask them anew).

Their code is on no package registry, and was read from git at the commit recorded. Where one
disagrees, the test's name says in what, the test shows by how much, and its docstring says why we
do otherwise. ROLL is not asked, and neither is what a training loop decides, such as how often
slime updates its critic.
"""

import numpy as np
import pytest

from rl.baseline import group_mean, returns_to_go, rloo
from rl.scale import EPSILON, RunningSquare, group_std
from rl.temporal import LengthAdaptive, gae, outcome
from rl.turn_grid import TurnGrid

EXACT = 1e-12
"""Both sides are float64, and add up a handful of numbers."""
SINGLE = 1e-6
"""RAGEN computes in float32, and NeMo-RL counts trajectories and tokens in it."""
FRESH = RunningSquare()


def close(expected, tolerance=EXACT):
    return pytest.approx(np.array(expected), rel=tolerance, abs=tolerance)


def grid_of(inputs):
    """A grid of turns from recorded inputs."""
    count = len(inputs["lengths"])
    return TurnGrid(
        rewards=np.array(inputs["rewards"]),
        lengths=np.array(inputs["lengths"]),
        groups=np.zeros(count, dtype=np.int64),
        final_values=np.array(inputs["final_values"]),
        values=np.array(inputs["values"]),
    )


def outcomes_of(inputs):
    """Trajectories of one turn with an outcome each."""
    count = len(inputs["rewards"])
    return TurnGrid(
        rewards=np.array(inputs["rewards"])[:, None],
        lengths=np.ones(count, dtype=np.int64),
        groups=np.array(inputs["groups"]),
        final_values=np.zeros(count),
    )


def row_of(rewards, values):
    """A grid of one trajectory."""
    inputs = {"rewards": [rewards], "values": [values], "lengths": [len(values)]}
    return grid_of({**inputs, "final_values": [0.0]})


# NeMo-RL: outcomes, and GAE that carries over what was observed.


def test_the_baseline_of_grpo_in_nemo_rl_is_rloo_and_with_self_the_mean_of_the_group(recorded):
    case = recorded("nemo_rl", "outcomes")
    grid = outcomes_of(case["inputs"])
    assert outcome(grid, rloo(grid))[:, 0] == close(case["results"]["grpo, not normalized"])
    centred = outcome(grid, group_mean(grid))
    theirs = case["results"]["grpo, with self, not normalized"]
    assert centred[:, 0] == close(theirs)
    scaled = group_std(grid, centred, FRESH)[0][:, 0]
    assert scaled == close(case["results"]["grpo, with self"], SINGLE)


def test_a_trajectory_without_siblings_has_the_advantage_0_as_in_nemo_rl(recorded):
    case = recorded("nemo_rl", "outcomes, two alone")
    grid = outcomes_of(case["inputs"])
    for baseline, name in ((rloo, "grpo"), (group_mean, "grpo, with self")):
        theirs = case["results"][f"{name}, not normalized"]
        ours = outcome(grid, baseline(grid))[:, 0]
        assert ours == close(theirs)
        assert ours[:2].tolist() == [0.0, 0.0]


def test_disagreement_grpo_of_nemo_rl_leaves_each_out_of_its_baseline_and_of_its_scale(recorded):
    """By default NeMo-RL's "grpo" compares with the siblings alone; ours has the group's own mean.

    The baseline alone would be a factor n/(n-1), and is `rloo` here. But its scale is the spread of
    the other siblings: another for each, and 1 where those agree. Ours is right: one scale for a
    group keeps what its siblings count against each other, and their sum 0. In theirs a lone
    success among four counts 1.0 and the failures together 1.73, just where a success is rare and
    most is to be learned from it; in ours both count 1.5.
    """
    case = recorded("nemo_rl", "outcomes, one success")
    grid = outcomes_of(case["inputs"])
    theirs = np.array(case["results"]["grpo, by default"])
    others = [np.delete(grid.returns, row) for row in range(4)]
    spreads = np.array([returns.std(ddof=1) for returns in others])
    assert spreads[0] == 0.0
    divisors = np.where(spreads > 0, spreads + EPSILON, 1.0)
    assert theirs == close(outcome(grid, rloo(grid))[:, 0] / divisors, SINGLE)
    ours = group_std(grid, outcome(grid, group_mean(grid)), FRESH)[0][:, 0]
    assert ours[0] == pytest.approx(1.5, abs=1e-4)
    assert ours.sum() == pytest.approx(0.0, abs=EXACT)
    assert theirs[0] == 1.0
    assert theirs[1:].sum() == pytest.approx(-1.7320, abs=1e-4)


def test_gae_that_carries_over_observed_tokens_is_that_of_nemo_rl(recorded):
    """The values on the observed tokens between the turns are noise, and nobody sees them."""
    case = recorded("nemo_rl", "turns")
    grid = grid_of(case["inputs"])
    lam, gamma = case["inputs"]["lam"], case["inputs"]["gamma"]
    got = gae(grid, grid.values, lam, gamma)[grid.mask]
    assert got == close(np.array(case["results"]["gae"])[grid.mask])
    targets = np.array(case["results"]["gae, targets"])[grid.mask]
    assert got + grid.values[grid.mask] == close(targets)


def test_a_window_for_advantages_and_returns_to_go_for_the_critic_are_those_of_nemo_rl(recorded):
    """VAPO's decoupling: the critic learns with lambda = 1, and the policy with its own."""
    case = recorded("nemo_rl", "turns")
    grid = grid_of(case["inputs"])
    lam, gamma = case["inputs"]["lam"], case["inputs"]["gamma"]
    advantages = np.array(case["results"]["gae, decoupled"])[grid.mask]
    assert gae(grid, grid.values, lam, gamma)[grid.mask] == close(advantages)
    targets = np.array(case["results"]["gae, decoupled, targets"])[grid.mask]
    assert returns_to_go(grid, gamma)[grid.mask] == close(targets)


def test_a_length_adaptive_window_over_turns_of_one_token_is_that_of_nemo_rl(recorded):
    """Where a turn is a token its unit is ours; a trajectory of three turns is below 1/alpha."""
    case = recorded("nemo_rl", "turns")
    grid = grid_of(case["inputs"])
    rule = LengthAdaptive(alpha=case["inputs"]["alpha"])
    assert rule.alpha * 3 < 1
    assert 3 in grid.lengths
    theirs = np.array(case["results"]["gae, length-adaptive"])[grid.mask]
    got = gae(grid, grid.values, rule, case["inputs"]["gamma"])[grid.mask]
    assert got == close(theirs, SINGLE)


# RAGEN: GAE on two levels.


def test_gae_over_turns_that_all_have_a_reward_is_the_higher_level_of_ragen(recorded):
    case = recorded("ragen", "every turn rewarded")
    grid = grid_of(case["inputs"])
    assert (grid.rewards[grid.mask] != 0).all()
    got = gae(grid, grid.values, case["inputs"]["lam"], case["inputs"]["turn_gamma"])
    theirs = np.array(case["results"]["advantages"])
    assert got[grid.mask] == close(theirs[grid.mask], SINGLE)


def test_disagreement_a_turn_without_a_reward_is_no_turn_for_ragen(recorded):
    """RAGEN takes non-zero rewards for the ends of turns, so that a turn of reward 0 has no end.

    The turns with a reward see each other as if none were between them: their advantages are those
    of the shorter trajectory. Ours is right: what ends a turn is that the policy hands over, and 0
    is a reward like others. With 0.01 in its place the same turn would be there.
    """
    case = recorded("ragen", "every other turn rewarded")
    grid = grid_of(case["inputs"])
    lam, gamma = case["inputs"]["lam"], case["inputs"]["turn_gamma"]
    ours = gae(grid, grid.values, lam, gamma)
    theirs = np.array(case["results"]["advantages"])
    for row in range(len(grid.lengths)):
        kept = np.flatnonzero(grid.rewards[row])
        short = row_of(grid.rewards[row, kept], grid.values[row, kept])
        assert theirs[row, kept] == close(gae(short, short.values, lam, gamma)[0], SINGLE)
    # The turns with a reward of the first trajectory.
    assert ours[0, 1::2] == pytest.approx([-1.7665, 0.6945, -0.473], abs=1e-4)
    assert theirs[0, 1::2] == pytest.approx([-1.3843, 0.7333, -0.473], abs=1e-4)


def test_disagreement_with_an_outcome_alone_ragen_has_one_level_and_forgets_its_discount(recorded):
    """One reward at the end: the whole trajectory is one turn, and turns are discounted as tokens.

    Ours is right: the discount per turn is a setting, and whether it holds is no matter of where
    rewards lie. Their answer is ours with the token's discount, 1.0 in place of 0.9.
    """
    case = recorded("ragen", "an outcome alone")
    inputs = case["inputs"]
    grid = grid_of(inputs)
    theirs = np.array(case["results"]["advantages"])[grid.mask]
    by_tokens = gae(grid, grid.values, inputs["lam"], inputs["token_gamma"])[grid.mask]
    assert theirs == close(by_tokens, SINGLE)
    ours = gae(grid, grid.values, inputs["lam"], inputs["turn_gamma"])[grid.mask]
    assert np.abs(ours - theirs).max() == pytest.approx(0.2076, abs=1e-4)


@pytest.mark.parametrize("name", ["no reward at the end", "no reward at all"])
def test_disagreement_ragen_has_no_answer_where_the_last_turn_has_no_reward(recorded, name):
    """A failure worth 0, or a last turn without a reward: RAGEN looks for a token behind the last.

    Ours is right: the last turn ends the trajectory, and an outcome of 0 is the common failure.
    """
    case = recorded("ragen", name)
    grid = grid_of(case["inputs"])
    assert case["results"] == {"error": "IndexError"}
    ours = gae(grid, grid.values, case["inputs"]["lam"], case["inputs"]["turn_gamma"])
    last = (np.arange(len(grid.lengths)), grid.lengths - 1)
    assert (grid.rewards[last] == 0).all()
    assert ours[last] == close(-grid.values[last])


# slime: GAE that knows no mask.


@pytest.mark.parametrize("way", ["vanilla", "chunked"])
def test_gae_without_observed_tokens_is_that_of_slime(recorded, way):
    case = recorded("slime", "no replies")
    grid = grid_of(case["inputs"])
    got = gae(grid, grid.values, case["inputs"]["lam"], case["inputs"]["gamma"])[grid.mask]
    assert got == close(np.array(case["results"][way])[grid.mask])


@pytest.mark.parametrize("way", ["vanilla", "chunked"])
def test_disagreement_slime_decays_through_observed_tokens(recorded, way):
    """A reply of one token is a step like one of the policy: lambda per turn is its square.

    The values on the replies are those of the next turn, so that the decay is all that differs.
    Ours is right: a reply is no decision, and how long a tool speaks says nothing of how much of a
    later surprise is due to the turn before. 0.8 reach the turn before with ours, 0.64 in slime,
    and of a reply of ten tokens less than 0.09.
    """
    case = recorded("slime", "replies with the value of the next turn")
    grid = grid_of(case["inputs"])
    lam, gamma = case["inputs"]["lam"], case["inputs"]["gamma"]
    theirs = np.array(case["results"][way])[grid.mask]
    assert theirs == close(gae(grid, grid.values, lam**2, gamma)[grid.mask])
    ours = gae(grid, grid.values, lam, gamma)[grid.mask]
    assert np.abs(ours - theirs).max() == pytest.approx(0.6810, abs=1e-4)


@pytest.mark.parametrize("way", ["vanilla", "chunked"])
def test_disagreement_slime_believes_the_critic_on_observed_tokens(recorded, way):
    """A value on a reply is the next value of the turn before it, and a state of its own.

    Ours is right: a critic is trained where the policy acts, and what it says elsewhere is noise,
    which here turns the sign of an advantage. Their answer is ours if a reply counts as a turn.
    """
    case = recorded("slime", "replies with noise for a value")
    grid = grid_of(case["inputs"])
    lam, gamma = case["inputs"]["lam"], case["inputs"]["gamma"]
    theirs = np.array(case["results"][way])
    for row, length in enumerate(grid.lengths):
        rewards, values = np.zeros(2 * length - 1), np.full(2 * length - 1, case["inputs"]["noise"])
        rewards[::2] = grid.rewards[row, :length]
        values[::2] = grid.values[row, :length]
        stretched = row_of(rewards, values)
        assert theirs[row, :length] == close(gae(stretched, values[None], lam, gamma)[0, ::2])
    ours = gae(grid, grid.values, lam, gamma)
    assert ours[0, 0] == pytest.approx(-0.8533, abs=1e-4)
    assert theirs[0, 0] == pytest.approx(0.5977, abs=1e-4)
    assert np.abs(ours - theirs)[grid.mask].max() == pytest.approx(1.6570, abs=1e-4)
