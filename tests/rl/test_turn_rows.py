"""From trajectories to a grid and back: turns, segments, states, rewards per turn, cut episodes."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from envs.episode import StopReason
from rewards.reward import Scored
from rl.advantage import Term, combine
from rl.turn_rows import GridOptions, Row, TurnValues, build_grid, spread, turn_starts
from rollout.trajectory import Segment, Source, TokenSpan

PLAIN = GridOptions()


def segment_of(pieces, first_turn=0):
    """Pieces are (source letter, tokens): P prompt, A policy, R tool reply."""
    sources = {"P": Source.PROMPT, "A": Source.POLICY, "R": Source.TOOL}
    spans, token_ids, at, turn = [], [], 0, first_turn - 1
    for letter, tokens in pieces:
        turn += letter == "A"
        spans.append(
            TokenSpan(
                start=at,
                stop=at + len(tokens),
                source=sources[letter],
                turn=max(first_turn, turn),
                policy_version=0,
            )
        )
        token_ids += tokens
        at += len(tokens)
    ids = np.array(token_ids, dtype=np.int32)
    is_policy = np.concatenate([[letter == "A"] * len(tokens) for letter, tokens in pieces])
    return Segment(
        token_ids=ids,
        spans=tuple(spans),
        behavior_logprobs=np.where(is_policy, -1.0, 0.0).astype(np.float32),
    )


TWO_TURNS = [("P", [1, 2]), ("A", [3, 4, 5]), ("R", [6]), ("A", [7])]


@pytest.fixture
def make_row(build_group):
    def make(segments, reward=1.0, turns=(), stop=StopReason.FINISHED, name="task", group=0):
        member = build_group([reward], name=name, segments=[segments[0]]).trajectories[0]
        trajectory = dataclasses.replace(
            member,
            segments=tuple(segments),
            outcome=Scored(value=reward, turns=turns),
            episode=dataclasses.replace(member.episode, stop=stop),
        )
        return Row(trajectory=trajectory, group=group, reward=reward)

    return make


def test_a_turn_starts_at_its_first_policy_token(make_row):
    starts = turn_starts(make_row([segment_of(TWO_TURNS)]).trajectory)
    assert [(s.turn, s.segment, s.position, s.observed_from) for s in starts] == [
        (0, 0, 2, 0),
        (1, 0, 6, 5),
    ]


def test_a_turn_that_spans_two_versions_is_one_turn(build_segment, make_row):
    segment = build_segment(token_ids=range(8), prompt=2, versions=(0, 1))
    one = [dataclasses.replace(span, turn=0) for span in segment.spans]
    row = make_row([dataclasses.replace(segment, spans=tuple(one))])
    assert len(turn_starts(row.trajectory)) == 1


def test_an_outcome_comes_after_the_last_turn(make_row):
    short = segment_of([("P", [1]), ("A", [2])])
    rows = [make_row([segment_of(TWO_TURNS)], 0.5), make_row([short], 1.0, group=3)]
    grid = build_grid(rows, PLAIN)
    assert grid.rewards.tolist() == [[0.0, 0.5], [1.0, 0.0]]
    assert grid.lengths.tolist() == [2, 1]
    assert grid.groups.tolist() == [0, 3]
    assert grid.values is None
    assert grid.states is None


def test_rewards_of_turns_count_as_they_are_weighed(make_row):
    row = make_row([segment_of(TWO_TURNS)], 1.0, turns=(0.5, -0.25))
    assert build_grid([row], PLAIN).rewards.tolist() == [[0.0, 1.0]]
    weighed = build_grid([row], GridOptions(turn_reward_weight=2.0))
    assert weighed.rewards.tolist() == [[1.0, 0.5]]


def test_a_turn_without_tokens_hands_its_reward_to_the_turn_before(make_row):
    """Turn 1 of three left no token."""
    third = dataclasses.replace(segment_of(TWO_TURNS).spans[3], turn=2)
    segment = segment_of(TWO_TURNS)
    segment = dataclasses.replace(segment, spans=(*segment.spans[:3], third))
    row = make_row([segment], 0.0, turns=(1.0, 10.0, 100.0))
    grid = build_grid([row], GridOptions(turn_reward_weight=1.0))
    assert grid.rewards.tolist() == [[11.0, 100.0]]


def test_an_episode_without_any_token_of_the_policy_is_one_empty_turn(make_row):
    grid = build_grid([make_row([segment_of([("P", [1, 2])])], 0.25)], PLAIN)
    assert grid.rewards.tolist() == [[0.25]]
    assert list(spread(make_row([segment_of([("P", [1])])]).trajectory, np.array([1.0]))) == []


def test_a_state_is_what_the_policy_newly_saw(make_row):
    other = [("P", [1, 2]), ("A", [9]), ("R", [6]), ("A", [9, 9])]
    third = [("P", [1, 2]), ("A", [9]), ("R", [8]), ("A", [9])]
    rows = [make_row([segment_of(pieces)]) for pieces in (TWO_TURNS, other, third)]
    states = build_grid(rows, GridOptions(with_states=True)).states
    assert states[0].tolist() == states[1].tolist()
    assert states[0, 0] == states[2, 0]
    assert states[0, 1] != states[2, 1]
    assert states[0, 0] != states[0, 1]


def test_a_cut_episode_is_worth_what_the_critic_expects_or_what_it_was_given(make_row):
    values = {"task#0@0": TurnValues(before=np.array([0.3, 0.6]), after=0.8)}
    cut = make_row([segment_of(TWO_TURNS)], 0.0, stop=StopReason.MAX_TURNS)
    invisible = build_grid([cut], GridOptions(values=values, values_truncated=True))
    assert invisible.values.tolist() == [[0.3, 0.6]]
    assert (invisible.rewards.tolist(), invisible.final_values.tolist()) == ([[0.0, 0.0]], [0.8])
    visible = build_grid([cut], GridOptions(values=values))
    assert (visible.rewards.tolist(), visible.final_values.tolist()) == ([[0.0, 0.0]], [0.0])
    finished = make_row([segment_of(TWO_TURNS)], 1.0)
    ended = build_grid([finished], GridOptions(values=values, values_truncated=True))
    assert (ended.rewards.tolist(), ended.final_values.tolist()) == ([[0.0, 1.0]], [0.0])


def test_a_value_that_is_not_finite_names_its_trajectory(make_row):
    values = {"task#0@0": TurnValues(before=np.array([0.3, np.nan]), after=0.8)}
    with pytest.raises(ValueError, match="trajectory 'task#0@0' has a reward or a value"):
        build_grid([make_row([segment_of(TWO_TURNS)])], GridOptions(values=values))


def test_every_token_of_a_turn_gets_the_turns_advantage(make_row):
    trajectory = make_row([segment_of(TWO_TURNS)]).trajectory
    [(_, of_token)] = list(spread(trajectory, np.array([0.5, -2.0])))
    assert of_token.tolist() == [0.0, 0.0, 0.5, 0.5, 0.5, 0.0, -2.0]


@given(data=st.data())
def test_credit_does_not_know_where_a_history_was_rewritten(data):
    """The same turns and values in one segment, or split into segments at any turn."""
    turns = data.draw(st.integers(2, 6))
    cuts = data.draw(st.sets(st.integers(1, turns - 1)))
    replies = [[("R", [100 + turn])] * (turn > 0) for turn in range(turns)]
    acts = [[*replies[turn], ("A", [turn, turn])] for turn in range(turns)]
    bounds = [0, *sorted(cuts), turns]
    whole = segment_of([("P", [1]), *(piece for act in acts for piece in act)])
    parts = [
        segment_of([("P", [1]), *(p for act in acts[a:b] for p in act)], first_turn=a)
        for a, b in itertools.pairwise(bounds)
    ]
    values = np.linspace(0.2, 0.7, turns)
    results = []
    for segments in ([whole], parts):
        trajectory = _trajectory(segments)
        row = Row(trajectory=trajectory, group=0, reward=1.0)
        judged = {trajectory.id: TurnValues(before=values, after=0.0)}
        grid = build_grid([row], GridOptions(values=judged))
        advantages, _ = combine(grid, [Term(baseline="critic", temporal="gae", lam=0.9)])
        pieces = [of_token[s.loss_mask] for s, of_token in spread(trajectory, advantages[0])]
        results.append(np.concatenate(pieces))
    assert results[0] == pytest.approx(results[1])


def _trajectory(segments):
    from envs.episode import Episode
    from envs.task import Task
    from rollout.trajectory import Trajectory

    task = Task(id="task", environment="toy", grader="toy")
    return Trajectory(
        id="task#0@0",
        episode=Episode(task=task, messages=(), stop=StopReason.FINISHED),
        segments=tuple(segments),
        turns=(),
        outcome=Scored(value=1.0),
    )
