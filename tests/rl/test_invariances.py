"""What credit and loss must not depend on: packing, ranks, segments, verbosity, mute groups.

Properties of the whole way from trajectories to a gradient; those of a single piece stand beside
its own tests.
"""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from rewards.reward import Scored
from rl.advantage import Term, combine
from rl.aggregation import AGGREGATIONS
from rl.batch import Sample
from rl.config import CreditSection
from rl.credit import assign_credit
from rl.loss import token_loss
from rl.packing import pack
from rl.presets import LossSettings
from rl.temporal import gae
from rl.trust_region import TRUST_REGIONS, with_sequence_log_ratios
from rl.turn_grid import TurnGrid
from rl.turn_rows import GridOptions, Row, TurnValues, build_grid, spread
from rollout.trajectory import Segment, Source, TokenSpan

SINGLE = 1e-5
"""Samples and batches are float32."""
SEEDS = st.integers(0, 10_000)
LETTERS = {"P": Source.PROMPT, "A": Source.POLICY, "R": Source.TOOL}


def make_segment(pieces):
    """Pieces are (source letter, turn, tokens); empty ones leave no span."""
    spans, token_ids = [], []
    for letter, turn, tokens in pieces:
        if len(tokens):
            start = len(token_ids)
            token_ids += list(tokens)
            spans.append(
                TokenSpan(
                    start=start,
                    stop=len(token_ids),
                    source=LETTERS[letter],
                    turn=turn,
                    policy_version=0,
                )
            )
    segment = Segment(
        token_ids=np.array(token_ids, dtype=np.int32),
        spans=tuple(spans),
        behavior_logprobs=np.zeros(len(token_ids), dtype=np.float32),
    )
    # Equal tokens have equal log-probs wherever they stand.
    behavior = np.where(segment.loss_mask, -1.0 - 0.01 * (segment.token_ids % 97), 0.0)
    return dataclasses.replace(segment, behavior_logprobs=behavior.astype(np.float32))


# One gradient, however the work is divided.


def draw_trajectories(data):
    """Turns of each trajectory: how many tokens the policy wrote, what each is worth, the cuts."""
    trajectories = []
    for _ in range(data.draw(st.integers(1, 4))):
        lengths = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
        trajectories.append(
            (
                lengths,
                data.draw(st.lists(st.floats(-2, 2), min_size=len(lengths), max_size=len(lengths))),
                data.draw(st.sets(st.integers(1, len(lengths)))) - {len(lengths)},
            )
        )
    return trajectories


def make_samples(trajectories, *, is_cut):
    """Segments with credit. Behind a cut the history is read again, and trains nothing."""
    samples, token = [], 0
    for number, (lengths, advantages, cuts) in enumerate(trajectories):
        written = [list(range(token := token + 1, token := token + n)) for n in lengths]
        bounds = [0, *sorted(cuts if is_cut else ()), len(lengths)]
        for start, stop in itertools.pairwise(bounds):
            history = [t for turn in written[:start] for t in turn]
            acts = [
                piece
                for turn in range(start, stop)
                for piece in (("R", turn, [0]), ("A", turn, written[turn]))
            ]
            segment = make_segment([("P", start, [0, *history]), *acts])
            of_token = np.array(advantages)[segment.turn_of_token] * segment.loss_mask
            samples.append(
                Sample(
                    segment=segment,
                    advantages=of_token.astype(np.float32),
                    trajectory_id=f"t{number}",
                    group_id=f"g{number // 2}",
                )
            )
    return samples


def gradient(samples, settings, max_batch_tokens, num_ranks):
    """The gradient by each token's log-prob, of micro-batches dealt out to ranks and added up.

    A token of the vocabulary stands once in the step, so that its log-prob is a parameter.
    """
    batch = pack(samples, max_batch_tokens, AGGREGATIONS[settings.aggregation], 40)
    size = 1 + max(int(sample.segment.token_ids.max()) for sample in samples)
    moved = torch.from_numpy(np.random.default_rng(size).normal(scale=0.3, size=size))
    start = -1.0 - 0.01 * (torch.arange(size) % 97).double()
    scores = [(start + moved)[part.token_ids] for part in batch.micro_batches]
    parts = with_sequence_log_ratios(batch.micro_batches, scores, settings)
    total = torch.zeros(size, dtype=torch.float64)
    for rank in range(num_ranks):
        parameters = (start + moved).requires_grad_()
        for part in parts[rank::num_ranks]:
            losses = token_loss(parameters[part.token_ids], part, settings)
            ((losses * part.weights).sum() / batch.denominator).backward()
        total += 0.0 if parameters.grad is None else parameters.grad
    return total


@given(
    data=st.data(),
    region=st.sampled_from(sorted(TRUST_REGIONS)),
    aggregation=st.sampled_from(sorted(AGGREGATIONS)),
)
def test_the_gradient_is_the_same_whatever_the_packing_the_ranks_and_the_segments(
    data, region, aggregation
):
    trajectories = draw_trajectories(data)
    settings = LossSettings(
        trust_region=region,
        ratio_low=0.8,
        ratio_high=1.2,
        tv_bound=0.02,
        kl_weight=0.1,
        aggregation=aggregation,
    )
    expected = gradient(make_samples(trajectories, is_cut=False), settings, 10_000, 1)
    samples = make_samples(trajectories, is_cut=True)
    longest = max(len(sample.segment.token_ids) for sample in samples)
    got = gradient(
        samples,
        settings,
        data.draw(st.integers(longest, 3 * longest)),
        data.draw(st.integers(1, 3)),
    )
    assert got.numpy() == pytest.approx(expected.numpy(), rel=SINGLE, abs=SINGLE)
    assert got.abs().max() > 0


# Credit counts turns: not tokens, not replies, not turns that left nothing.


def make_trajectory(build_group, turns, rewards=()):
    """One segment; turns are (tokens observed before, tokens written)."""
    pieces = [("P", 0, [1])]
    for turn, (observed, written) in enumerate(turns):
        pieces += [("R", turn, [2] * observed), ("A", turn, [3] * written)]
    trajectory = build_group([1.0], segments=[make_segment(pieces)]).trajectories[0]
    return dataclasses.replace(trajectory, outcome=Scored(value=1.0, turns=tuple(rewards)))


def critic_advantages(trajectory, values, turn_reward_weight=0.0):
    """The advantage of every written token under a critic with a window, and the grid."""
    judged = {trajectory.id: TurnValues(before=np.array(values), after=0.0)}
    options = GridOptions(values=judged, turn_reward_weight=turn_reward_weight)
    grid = build_grid([Row(trajectory=trajectory, group=0, reward=1.0)], options)
    advantages, _ = combine(grid, [Term(baseline="critic", temporal="gae", lam=0.8)])
    [(segment, of_token)] = list(spread(trajectory, advantages[0]))
    return of_token[segment.loss_mask], grid


@given(data=st.data())
def test_advantages_do_not_know_how_much_was_written_or_observed(build_group, data):
    count = data.draw(st.integers(1, 6))
    values = data.draw(st.lists(st.floats(0, 1), min_size=count, max_size=count))
    sizes = st.tuples(st.integers(0, 5), st.integers(1, 5))
    turns = data.draw(st.lists(sizes, min_size=count, max_size=count))
    got, _ = critic_advantages(make_trajectory(build_group, turns), values)
    of_turn, _ = critic_advantages(make_trajectory(build_group, [(0, 1)] * count), values)
    assert got == pytest.approx(np.repeat(of_turn, [written for _, written in turns]))


@given(data=st.data())
def test_a_turn_without_tokens_is_no_turn_and_what_it_earned_is_the_one_before_s(build_group, data):
    count = data.draw(st.integers(1, 5))
    values = data.draw(st.lists(st.floats(0, 1), min_size=count, max_size=count))
    rewards = data.draw(st.lists(st.floats(-1, 1), min_size=count, max_size=count))
    place = data.draw(st.integers(1, count))
    earned = data.draw(st.floats(-1, 1))
    turns = [(1, 2)] * count
    with_empty = make_trajectory(
        build_group,
        [*turns[:place], (1, 0), *turns[place:]],
        [*rewards[:place], earned, *rewards[place:]],
    )
    moved = [r + earned * (turn == place - 1) for turn, r in enumerate(rewards)]
    got, grid = critic_advantages(with_empty, values, 1.0)
    expected, _ = critic_advantages(make_trajectory(build_group, turns, moved), values, 1.0)
    assert grid.lengths.tolist() == [count]
    assert got == pytest.approx(expected, abs=1e-6)


# Groups that say nothing.


@pytest.mark.parametrize("name", ["rloo", "grpo", "dr_grpo", "gigpo", "gagpo"])
@given(
    rewards=st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=1, max_size=5),
    score=st.floats(0, 1),
    count=st.integers(1, 4),
    is_valid=st.booleans(),
)
def test_a_singleton_an_all_equal_and_an_all_invalid_group_are_mute(
    build_group, name, rewards, score, count, is_valid
):
    """They get no gradient, and do not change what others get."""
    section = CreditSection(type=name)
    group = build_group(rewards, name="other")
    mute = build_group([score if is_valid else None] * count, name="mute")
    alone = {s.trajectory_id: s.advantages for s in assign_credit([group], section)}
    beside = {s.trajectory_id: s.advantages for s in assign_credit([mute, group], section)}
    of_mute = {key: value for key, value in beside.items() if key.startswith("mute")}
    assert all(np.abs(value).max() < 1e-6 for value in of_mute.values())
    assert set(beside) - set(of_mute) == set(alone)
    for key, value in alone.items():
        assert beside[key] == pytest.approx(value, abs=1e-6)


# Expectations, by enumeration: two turns of two actions, the second state set by the first action.


def world(seed):
    """Probabilities [state, action] of states start, after 0, after 1; rewards by both actions."""
    random = np.random.default_rng(seed)
    first = random.uniform(0.1, 0.9, size=3)
    return np.stack([first, 1 - first], axis=1), random.normal(size=(2, 2))


def enumerate_episodes(probability, rewards, values):
    """All four episodes as a grid, their probabilities, and the states of their turns."""
    pairs = np.array(list(itertools.product(range(2), repeat=2)))
    states = np.stack([np.zeros(4, dtype=np.int64), 1 + pairs[:, 0]], axis=1)
    chances = probability[0, pairs[:, 0]] * probability[states[:, 1], pairs[:, 1]]
    grid = TurnGrid(
        rewards=np.stack([np.zeros(4), rewards[pairs[:, 0], pairs[:, 1]]], axis=1),
        lengths=np.full(4, 2),
        groups=np.zeros(4, dtype=np.int64),
        final_values=np.zeros(4),
        values=values[states],
        states=states,
    )
    return grid, chances, pairs


def expected_gradient(probability, grid, chances, pairs, advantages):
    """E[sum_h A_h grad log pi(a_h | s_h)] by the logits of each state, [3, 2]."""
    total = np.zeros((3, 2))
    for row, chance in enumerate(chances):
        for turn in range(2):
            state = grid.states[row, turn]
            score = np.eye(2)[pairs[row, turn]] - probability[state]
            total[state] += chance * advantages[row, turn] * score
    return total


def true_values(probability, rewards):
    """Expected return from each state."""
    after = (probability[1:] * rewards).sum(axis=1)
    return np.array([probability[0] @ after, *after])


@given(seed=SEEDS, values=st.lists(st.floats(-3, 3), min_size=3, max_size=3))
def test_whatever_a_critic_says_shifts_no_expected_gradient_at_lambda_one(seed, values):
    """And with the true values none at any lambda; with wrong ones a window is biased."""
    probability, rewards = world(seed)

    def at(judged, lam):
        grid, chances, pairs = enumerate_episodes(probability, rewards, np.array(judged))
        advantages = gae(grid, grid.values, lam)
        return expected_gradient(probability, grid, chances, pairs, advantages)

    exact = at([0.0, 0.0, 0.0], 1.0)
    assert at(values, 1.0) == pytest.approx(exact, abs=1e-12)
    assert at(true_values(probability, rewards), 0.3) == pytest.approx(exact, abs=1e-12)
    wrong = true_values(probability, rewards) + np.array([0.0, 1.0, 0.0])
    assert at(wrong, 0.3) != pytest.approx(exact, abs=1e-3)


@given(seed=SEEDS, lam=st.floats(0.1, 1.0))
def test_a_cut_that_the_true_value_stands_for_leaves_the_expected_advantage(seed, lam):
    """Cut after the first turn: its advantage is the mean over what would have followed."""
    probability, rewards = world(seed)
    values = true_values(probability, rewards)
    grid, chances, pairs = enumerate_episodes(probability, rewards, values)
    whole = gae(grid, grid.values, lam)[:, 0]
    for action in range(2):
        rows = pairs[:, 0] == action
        expected = chances[rows] @ whole[rows] / chances[rows].sum()
        cut = TurnGrid(
            rewards=np.zeros((1, 1)),
            lengths=np.array([1]),
            groups=np.array([0]),
            final_values=values[[1 + action]],
            values=values[None, :1],
        )
        [[bootstrapped]] = gae(cut, cut.values, lam)
        assert bootstrapped == pytest.approx(expected, abs=1e-12)
        ended = dataclasses.replace(cut, final_values=np.zeros(1))
        [[as_an_end]] = gae(ended, ended.values, lam)
        assert as_an_end - expected == pytest.approx(-values[1 + action], abs=1e-12)
