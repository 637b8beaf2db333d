"""Advantages against what rlax, torchrl, verl and TRL answered (`make oracles` asks them anew).

Where a package disagrees, the test's name says in what, the test shows by how much, and its
docstring says why we do otherwise. What is on no package registry (NeMo-RL, RAGEN, slime) is
compared in test_oracle_checkouts.py.
"""

import dataclasses

import numpy as np
import pytest

from rl.advantage import combine
from rl.baseline import batch_mean, group_mean, none, returns_to_go, rloo
from rl.config import CreditSection
from rl.credit import assign_credit
from rl.presets import PRESETS
from rl.scale import EPSILON, RunningSquare, batch_std, group_std
from rl.temporal import (
    LengthAdaptive,
    gae,
    lambda_of_trajectory,
    outcome,
    reward_to_go,
    surprises,
)
from rl.turn_grid import TurnGrid
from rl.turn_rows import spread
from rollout.trajectory import Segment, Source, TokenSpan

EXACT = 1e-12
"""Both sides are float64, and add up a handful of numbers."""
SERIES = 1e-6
"""torchrl's vectorized forms cut powers of the decay off below 1e-7."""
FRESH = RunningSquare()
WINDOWS = [(0.95, 1.0), (0.8, 0.9), (0.0, 0.9), (1.0, 1.0)]


def close(expected):
    return pytest.approx(np.array(expected), rel=EXACT, abs=EXACT)


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


def whiten(numbers):
    """As verl does it: centre, and divide by the unbiased standard deviation."""
    return (numbers - numbers.mean()) / np.sqrt(numbers.var(ddof=1) + 1e-8)


# GAE: rlax and torchrl, turns as steps.


@pytest.mark.parametrize(("lam", "gamma"), WINDOWS)
def test_gae_over_turns_is_that_of_rlax(recorded, lam, gamma):
    case = recorded("rlax", f"turns, lambda {lam}, gamma {gamma}")
    grid = grid_of(case["inputs"])
    got = gae(grid, grid.values, lam, gamma)
    for row, length in enumerate(grid.lengths):
        assert got[row, :length] == close(case["results"]["advantages"][row])
        targets = got[row, :length] + grid.values[row, :length]
        assert targets == close(case["results"]["lambda_returns"][row])


def test_a_length_adaptive_window_is_that_of_rlax_with_a_lambda_for_each_trajectory(recorded):
    case = recorded("rlax", "turns, length-adaptive")
    grid = grid_of(case["inputs"])
    got = gae(grid, grid.values, LengthAdaptive(alpha=case["inputs"]["alpha"]))
    for row, length in enumerate(grid.lengths):
        assert got[row, :length] == close(case["results"]["advantages"][row])


@pytest.mark.parametrize(("lam", "gamma"), WINDOWS[:2])
def test_gae_where_episodes_end_or_are_cut_off_is_that_of_torchrl(recorded, lam, gamma):
    """What follows a cut is worth what the critic says; behind an end it is not asked."""
    case = recorded("torchrl", f"lambda {lam}, gamma {gamma}")
    grid = grid_of(case["inputs"])
    assert any(case["inputs"]["is_cut"])
    assert not all(case["inputs"]["is_cut"])
    got = gae(grid, grid.values, lam, gamma)[grid.mask]
    assert got == close(np.array(case["results"]["gae"])[grid.mask])
    vectorized = np.array(case["results"]["vectorized gae"])[grid.mask]
    assert got == pytest.approx(vectorized, abs=SERIES)
    returns = np.array(case["results"]["td lambda returns"])[grid.mask]
    assert got + grid.values[grid.mask] == close(returns)


@pytest.mark.parametrize(("lam", "gamma"), WINDOWS[:2])
def test_returns_to_go_are_those_of_torchrl(recorded, lam, gamma):
    case = recorded("torchrl", f"lambda {lam}, gamma {gamma}")
    grid = grid_of({**case["inputs"], "final_values": [0.0] * 4})
    expected = np.array(case["results"]["reward to go"])[grid.mask]
    assert returns_to_go(grid, gamma)[grid.mask] == pytest.approx(expected, abs=SERIES)


def test_disagreement_torchrl_takes_a_cut_for_an_end_unless_it_is_told(recorded):
    """`done` without `terminated` makes a cut episode worth nothing from there on.

    Ours is right: with a budget that the policy cannot see, the rest of the episode exists and is
    worth what the critic expects of it; as an end, a cut punishes whatever the policy was doing.
    verl knows ends alone: its recursion starts from 0.
    """
    case = recorded("torchrl", "lambda 0.95, gamma 1.0")
    grid = grid_of(case["inputs"])
    theirs = np.array(case["results"]["gae without terminated"])
    as_ends = dataclasses.replace(grid, final_values=np.zeros(4))
    assert theirs[grid.mask] == close(gae(as_ends, grid.values, 0.95)[grid.mask])
    ours = gae(grid, grid.values, 0.95)
    last = grid.lengths - 1
    difference = (ours - theirs)[np.arange(4), last]
    assert difference == close(grid.final_values)
    assert np.count_nonzero(difference) == sum(case["inputs"]["is_cut"]) == 2


# GAE on tokens: turn boundaries, and what was observed between turns.


@pytest.fixture
def token_case(recorded, build_group):
    """The recorded case, our advantages of its turns, and of the tokens that the policy wrote."""
    case = recorded("rlax", "tokens")
    inputs = case["inputs"]
    spans, at = [], 0
    counts = zip(inputs["observed_tokens"], inputs["turn_tokens"], strict=True)
    for turn, (observed, written) in enumerate(counts):
        for source, count in ((Source.TOOL, observed), (Source.POLICY, written)):
            if count:
                spans.append(
                    TokenSpan(start=at, stop=at + count, source=source, turn=turn, policy_version=0)
                )
            at += count
    segment = Segment(
        token_ids=np.arange(at, dtype=np.int32),
        spans=tuple(spans),
        behavior_logprobs=np.zeros(at, dtype=np.float32),
    )
    grid = grid_of(
        {
            "lengths": [4],
            "rewards": [inputs["rewards"]],
            "values": [inputs["values"]],
            "final_values": [inputs["final_value"]],
        }
    )
    of_turn = gae(grid, grid.values, inputs["lam"], inputs["gamma"])[0]
    [(_, of_token)] = spread(build_group([0.0], segments=[segment]).trajectories[0], of_turn)
    return case, of_turn, of_token[segment.loss_mask]


def test_turn_boundary_gae_is_that_of_rlax_with_lambda_and_discount_one_inside_a_turn(token_case):
    case, of_turn, of_token = token_case
    theirs = case["results"]["decay at turn ends, a value per turn"]
    assert np.repeat(of_turn, case["inputs"]["turn_tokens"]) == close(theirs)
    assert of_token == pytest.approx(theirs, rel=1e-6)  # tokens carry float32


def test_disagreement_a_value_for_each_token_moves_advantages_within_a_turn(token_case):
    """With V_t inside a turn, A_t = A_h + V(s_h) - V_t: a baseline more, and no other credit.

    Ours is V(s_h) for all tokens of a turn: the critic is trained and read at turn boundaries
    alone, so inside a turn it would be asked for what it never learned. The expected gradient is
    the same, V_t being a baseline that does not depend on token t.
    """
    case, _, _ = token_case
    inputs = case["inputs"]
    theirs = np.array(case["results"]["decay at turn ends, a value per token"])
    own_values = np.concatenate(inputs["token_values"])
    first = [values[0] for values in inputs["token_values"]]
    # Their V(s_h) is the value of the turn's first token.
    grid = grid_of(
        {
            "lengths": [4],
            "rewards": [inputs["rewards"]],
            "values": [first],
            "final_values": [inputs["final_value"]],
        }
    )
    ours = gae(grid, grid.values, inputs["lam"], inputs["gamma"])[0]
    shift = np.repeat(first, inputs["turn_tokens"]) - own_values
    assert theirs == close(np.repeat(ours, inputs["turn_tokens"]) + shift)
    assert np.abs(shift).max() > 1.0


def test_disagreement_a_decay_at_every_token_makes_long_replies_a_long_time(token_case):
    """One lambda for all tokens: replies and long turns take time.

    Ours is right: how much of a later surprise is due to a turn does not depend on how verbose a
    tool is. Five tokens of reply after the first turn shrink what reaches it from 0.72 to 0.72^6.
    """
    case, of_turn, _ = token_case
    theirs = np.array(case["results"]["decay at every token"])
    assert of_turn[0] == pytest.approx(-0.1336, abs=1e-4)
    assert theirs[:3] == pytest.approx([-0.2780, -0.2604, -0.2360], abs=1e-4)
    assert of_turn[2] == pytest.approx(0.1954, abs=1e-4)
    assert theirs[4:8] == pytest.approx([0.3810, 0.4546, 0.5568, 0.6987], abs=1e-4)


def test_disagreement_a_window_that_is_a_share_of_the_tokens_is_longer_after_long_turns(recorded):
    """VAPO and SAO set lambda = 1 - 1/(alpha l), l in tokens of the policy; ours counts turns.

    Ours is right: their lambda makes the same two turns of one trajectory nearer or further from
    each other as the turns between them are short or long. Of the last turn's surprise 0.58 reach
    the first turn, whatever they wrote; by tokens, 0.54 the first token of that turn and 0.62 its
    last.
    """
    case = recorded("rlax", "tokens")
    inputs = case["inputs"]
    theirs = np.array(case["results"]["a window that is a share of the tokens"])
    grid = grid_of(
        {
            "lengths": [4],
            "rewards": [inputs["rewards"]],
            "values": [inputs["values"]],
            "final_values": [inputs["final_value"]],
        }
    )
    rule = LengthAdaptive(alpha=1.5)
    surprise = surprises(grid, grid.values)[0]
    ends = np.cumsum(inputs["turn_tokens"]) - 1
    lam = 1 - 1 / (1.5 * 10)
    by_tokens = [
        sum(lam ** (end - t) * delta for end, delta in zip(ends, surprise, strict=True) if end >= t)
        for t in range(10)
    ]
    assert theirs == close(by_tokens)
    assert [lam ** (ends[-1] - t) for t in (0, 2)] == pytest.approx([0.537, 0.617], abs=1e-3)
    [share] = lambda_of_trajectory(grid, rule) ** 3
    assert share == pytest.approx(0.579, abs=1e-3)
    ours = gae(grid, grid.values, rule)[0]
    assert ours[0] == close(sum(share ** (k / 3) * surprise[k] for k in range(4)))


def test_gae_that_carries_over_observed_tokens_is_that_of_verl(recorded):
    """The values on the observed tokens between the turns are noise, and nobody sees them."""
    case = recorded("verl", "turns")
    grid = grid_of(case["inputs"])
    got = gae(grid, grid.values, case["inputs"]["lam"], case["inputs"]["gamma"])
    assert got[grid.mask] == close(np.array(case["results"]["gae"])[grid.mask])


def test_disagreement_verl_whitens_advantages_and_so_turns_the_sign_of_some(recorded):
    """verl always centres a critic's advantages and divides by their deviation, over tokens.

    Ours divides alone, over turns. A centred advantage has lost what the critic's mean error says,
    and near 0 its sign: a turn that went better than expected is made less likely.
    """
    case = recorded("verl", "turns")
    grid = grid_of(case["inputs"])
    ours = gae(grid, grid.values, case["inputs"]["lam"], case["inputs"]["gamma"])
    theirs = np.array(case["results"]["gae, whitened"])[grid.mask]
    assert theirs == pytest.approx(whiten(ours[grid.mask]), abs=1e-7)
    scaled = batch_std(grid, ours, FRESH)[0][grid.mask]
    assert (np.sign(scaled) == np.sign(ours[grid.mask])).all()
    is_turned = np.sign(theirs) != np.sign(ours[grid.mask])
    assert ours[grid.mask][is_turned] == pytest.approx([0.2321, 0.142], abs=1e-4)
    assert theirs[is_turned] == pytest.approx([-0.0037, -0.0601], abs=1e-4)


def test_disagreement_verl_drops_a_reward_that_lies_on_a_reply(recorded):
    """A reward on a token that the policy did not write reaches no turn in verl's GAE.

    Ours gives a turn's reward to the turn, wherever its tokens lie: rewards come from graders,
    per turn, and the reply that shows the effect of a turn is where they would be written.
    """
    case = recorded("verl", "turns")
    grid = grid_of(case["inputs"])
    lam, gamma = case["inputs"]["lam"], case["inputs"]["gamma"]
    theirs = np.array(case["results"]["gae, rewards on replies"])[grid.mask]
    without = dataclasses.replace(grid, rewards=np.zeros_like(grid.rewards))
    assert theirs == close(gae(without, grid.values, lam, gamma)[grid.mask])
    assert np.abs(theirs - gae(grid, grid.values, lam, gamma)[grid.mask]).max() > 2.0


# REINFORCE++: returns to go, whitened.


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_returns_to_go_that_carry_over_observed_tokens_are_those_of_verl(recorded, gamma):
    case = recorded("verl", "turns")
    grid = grid_of(case["inputs"])
    got = reward_to_go(grid, none(grid), gamma=gamma)[grid.mask]
    theirs = np.array(case["results"][f"reinforce++ returns, gamma {gamma}"])[grid.mask]
    assert got == close(theirs)
    whitened = np.array(case["results"][f"reinforce++, gamma {gamma}"])[grid.mask]
    assert whitened == pytest.approx(whiten(got), abs=1e-7)


def test_disagreement_verl_centres_by_the_mean_token_and_ours_by_the_mean_trajectory(recorded):
    """The preset reinforce_pp expects the mean return of a trajectory, and scales over turns.

    The mean over tokens counts a trajectory by its length: where failures are long it lies below
    the mean return, and the average attempt counts as a success.
    """
    case = recorded("verl", "outcomes")
    grid = outcomes_of(case["inputs"])
    tokens = np.array(case["inputs"]["mask"]).sum(axis=1)
    deviations = outcome(grid, group_mean(grid))[:, 0]
    theirs = np.array(case["results"]["reinforce++ baseline"])
    over_tokens = whiten(np.repeat(deviations, tokens))
    assert np.repeat(theirs, tokens) == pytest.approx(over_tokens, abs=1e-7)
    [term] = PRESETS["reinforce_pp"].rule.terms
    ours, _ = combine(grid, [term])
    returns = grid.returns
    expected = (returns - returns.mean()) / (returns.std() + EPSILON)
    assert ours[:, 0] == close(expected)
    assert ours[:, 0].mean() == pytest.approx(0.0, abs=EXACT)
    assert (np.repeat(ours[:, 0], tokens)).mean() != pytest.approx(0.0, abs=0.05)


# Outcomes: GRPO, RLOO.


def test_grpo_and_rloo_are_those_of_verl(recorded):
    case = recorded("verl", "outcomes")
    grid = outcomes_of(case["inputs"])
    centred = outcome(grid, group_mean(grid))
    assert centred[:, 0] == close(case["results"]["grpo without std"])
    assert group_std(grid, centred, FRESH)[0][:, 0] == close(case["results"]["grpo"])
    assert outcome(grid, rloo(grid))[:, 0] == close(case["results"]["rloo"])


def test_grpo_and_rloo_are_those_of_trl(recorded):
    case = recorded("trl", "outcomes")
    grid = outcomes_of(case["inputs"])
    assert outcome(grid, group_mean(grid))[:, 0] == close(case["results"]["grpo, scale none"])
    assert outcome(grid, rloo(grid))[:, 0] == close(case["results"]["rloo"])


@pytest.mark.parametrize(("preset", "answer"), [("dr_grpo", "grpo, scale none"), ("rloo", "rloo")])
def test_members_without_a_score_are_in_no_baseline_as_in_trl(
    recorded, build_group, preset, answer
):
    """Groups of three, with one, two and three members that no grader could judge."""
    case = recorded("trl", "outcomes, some invalid")
    rewards = case["inputs"]["rewards"]
    groups = [build_group(rewards[at : at + 3], name=f"task{at // 3}") for at in (0, 3, 6)]
    samples = assign_credit(groups, CreditSection(type=preset))
    got = {sample.trajectory_id: float(sample.advantages.max()) for sample in samples}
    got |= {
        sample.trajectory_id: float(sample.advantages.min())
        for sample in samples
        if sample.advantages.min() < 0
    }
    theirs = dict(
        zip(
            [member.id for group in groups for member in group.trajectories],
            case["results"][answer],
            strict=True,
        )
    )
    assert theirs == pytest.approx({**dict.fromkeys(theirs, 0.0), **got})
    assert len(got) == 2  # who has nothing to be compared with gives no sample


def test_disagreement_verl_gives_a_trajectory_without_siblings_its_raw_reward(recorded):
    """GRPO and RLOO of a single attempt: verl's advantage is the reward, ours is 0.

    Nothing is known of what was to be expected. A raw reward pushes a success up whether or not the
    policy always succeeds there, and never a failure down. TRL gives 0 too.
    """
    case = recorded("verl", "outcomes, two alone")
    grid = outcomes_of(case["inputs"])
    is_alone = np.array([True, True, False, False])
    for name, ours in (
        ("grpo without std", outcome(grid, group_mean(grid))[:, 0]),
        ("rloo", outcome(grid, rloo(grid))[:, 0]),
    ):
        theirs = np.array(case["results"][name])
        assert theirs[is_alone].tolist() == [1.0, 0.25]
        assert ours[is_alone].tolist() == [0.0, 0.0]
        assert ours[~is_alone] == close(theirs[~is_alone])


def test_disagreement_trl_adds_a_hundred_times_more_to_the_standard_deviation(recorded):
    """1e-4 in TRL, 1e-6 in verl and here: it matters where siblings nearly agree.

    With a deviation of 2.5e-4 TRL's advantages are 28 % smaller, so that reward scales of 1 and of
    0.001 train differently. What the epsilon is for, a deviation of 0, is 0 with either.
    """
    ours = {}
    for package, name in (("verl", "grpo"), ("trl", "grpo, scale group")):
        case = recorded(package, "outcomes, nearly equal")
        grid = outcomes_of(case["inputs"])
        ours[package] = group_std(grid, outcome(grid, group_mean(grid)), FRESH)[0][:, 0]
        spread_of_returns = grid.returns.std(ddof=1)
        epsilon = {"verl": 1e-6, "trl": 1e-4}[package]
        expected = ours[package] * (spread_of_returns + EPSILON) / (spread_of_returns + epsilon)
        assert case["results"][name] == pytest.approx(expected, rel=1e-9)
    assert ours["verl"][1] == pytest.approx(1.3853, abs=1e-4)
    theirs = recorded("trl", "outcomes, nearly equal")["results"]["grpo, scale group"]
    assert theirs[1] == pytest.approx(0.9953, abs=1e-4)


def test_disagreement_verl_divides_rounding_by_its_epsilon(recorded):
    """Three rewards of 0.7 have a mean of 0.7 - 1e-16; verl makes that 1e-10, ours leaves it.

    Harmless at either size, and ours cannot grow with the epsilon.
    """
    case = recorded("verl", "outcomes, equal")
    grid = outcomes_of(case["inputs"])
    ours = group_std(grid, outcome(grid, group_mean(grid)), FRESH)[0]
    assert np.abs(ours).max() < 1e-15
    assert np.abs(case["results"]["grpo"]).max() == pytest.approx(1.1e-10, rel=0.02)


def test_disagreement_the_batch_scale_of_trl_is_the_spread_of_rewards_and_ours_of_advantages(
    recorded,
):
    """A batch of easy and hard tasks: TRL's divisor holds the distance between the tasks.

    Ours is what it scales, so that advantages have size 1 whatever the mixture of tasks. The two
    agree where all tasks are equally hard.
    """
    case = recorded("trl", "outcomes")
    grid = outcomes_of(case["inputs"])
    centred = outcome(grid, group_mean(grid))
    theirs = np.array(case["results"]["grpo, scale batch"])
    assert theirs == close(centred[:, 0] / (grid.returns.std(ddof=1) + 1e-4))
    ours = batch_std(grid, centred, FRESH)[0][:, 0]
    assert ours.std() == pytest.approx(1.0, rel=1e-5)
    assert theirs.std() == pytest.approx(0.9081, abs=1e-4)
    assert outcome(grid, batch_mean(grid)).std() > centred.std()
