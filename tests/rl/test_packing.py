"""Packing and batches: no token is lost, moved to another sequence, or given another's values."""

import dataclasses
import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, strategies

from rl.aggregation import AGGREGATIONS
from rl.batch import MicroBatch, Sample, lay_end_to_end
from rl.packing import num_tokens, pack
from rollout.trajectory import Segment, Source, TokenSpan


def make_sample(length, index=0):
    """A segment whose tokens, log-probs and advantages all tell which sample they belong to."""
    spans = [TokenSpan(start=0, stop=1, source=Source.PROMPT, turn=0, policy_version=0)]
    if length > 1:
        spans.append(
            TokenSpan(start=1, stop=length, source=Source.POLICY, turn=0, policy_version=0)
        )
    logprobs = np.full(length, -1.0 - index, dtype=np.float32)
    logprobs[0] = 0.0
    segment = Segment(
        token_ids=(index * 1000 + np.arange(length)).astype(np.int32),
        spans=tuple(spans),
        behavior_logprobs=logprobs,
        expert_ids=np.full((length, 2, 2), index, dtype=np.int16),
    )
    advantages = segment.loss_mask * np.float32(index + 1)
    return Sample(segment=segment, advantages=advantages)


def unpack(batch):
    """Every token of a batch with all that belongs to it."""
    for micro_batch in batch.micro_batches:
        bounds = micro_batch.cu_seqlens.tolist()
        for start, stop in itertools.pairwise(bounds):
            for t in range(start, stop):
                yield (
                    int(micro_batch.token_ids[t]),
                    t - start,
                    bool(micro_batch.loss_mask[t]),
                    float(micro_batch.behavior_logprobs[t]),
                    float(micro_batch.advantages[t]),
                    int(micro_batch.expert_ids[t, 0, 0]),
                )


def expected(samples):
    for index, sample in enumerate(samples):
        for t in range(num_tokens(sample)):
            is_policy = t > 0
            yield (
                index * 1000 + t,
                t,
                is_policy,
                -1.0 - index if is_policy else 0.0,
                index + 1.0 if is_policy else 0.0,
                index,
            )


@given(strategies.lists(strategies.integers(1, 40), min_size=1, max_size=30))
def test_every_token_keeps_its_place_and_its_values(lengths):
    samples = [make_sample(length, index) for index, length in enumerate(lengths)]
    batch = pack(samples, max_batch_tokens=64)
    assert Counter(unpack(batch)) == Counter(expected(samples))
    assert batch.num_loss_tokens == sum(length - 1 for length in lengths)
    assert all(len(micro_batch.token_ids) <= 64 for micro_batch in batch.micro_batches)


@given(strategies.lists(strategies.integers(1, 40), min_size=1, max_size=30))
def test_packing_is_deterministic_and_longest_first(lengths):
    samples = [make_sample(length, index) for index, length in enumerate(lengths)]
    first, again = pack(samples, 64), pack(samples, 64)
    assert list(unpack(first)) == list(unpack(again))
    packed = [
        int(length)
        for micro_batch in first.micro_batches
        for length in micro_batch.cu_seqlens.diff()
    ]
    assert packed == sorted(lengths, reverse=True)


def test_a_sample_longer_than_a_micro_batch_is_refused():
    with pytest.raises(ValueError, match=r"65 tokens .* learner\.max_batch_tokens = 64"):
        pack([make_sample(65)], 64)


def test_an_empty_step_is_refused():
    with pytest.raises(ValueError, match="no sample"):
        pack([], 64)


def test_a_sample_refuses_an_advantage_on_a_token_of_another_writer():
    segment = make_sample(3).segment
    with pytest.raises(ValueError, match="did not write"):
        Sample(segment=segment, advantages=np.ones(3, dtype=np.float32))


def test_a_sample_refuses_an_advantage_that_is_not_finite():
    sample = make_sample(3)
    with pytest.raises(ValueError, match="not finite"):
        Sample(segment=sample.segment, advantages=sample.advantages * np.float32(np.nan))


def test_segments_without_routing_give_no_expert_ids(build_segment):
    _, cu_seqlens, expert_ids = lay_end_to_end([build_segment(), build_segment()])
    assert expert_ids is None
    assert cu_seqlens.tolist() == [0, 4, 8]


def test_routing_of_only_some_segments_is_refused(build_segment):
    with pytest.raises(ValueError, match="1 of 2 segments"):
        lay_end_to_end([build_segment(), build_segment(experts=1)])


def test_a_micro_batch_keeps_the_order_given():
    micro_batch = MicroBatch.from_samples([make_sample(2, 3), make_sample(3, 1)])
    assert micro_batch.token_ids.tolist() == [3000, 3001, 1000, 1001, 1002]


def of_trajectory(sample, trajectory, group):
    return dataclasses.replace(sample, trajectory_id=trajectory, group_id=group)


@pytest.mark.parametrize("name", AGGREGATIONS)
@pytest.mark.parametrize("max_batch_tokens", [12, 1000])
def test_a_token_weighs_what_its_whole_trajectory_says(name, max_batch_tokens):
    """Two segments of one trajectory, and two whole trajectories, one of another group."""
    parts = [("a", "x"), ("a", "x"), ("b", "x"), ("c", "y")]
    samples = [
        of_trajectory(make_sample(length, index), *parts[index])
        for index, length in enumerate((11, 3, 9, 5))
    ]
    batch = pack(samples, max_batch_tokens, AGGREGATIONS[name], 100)
    weights, denominator = AGGREGATIONS[name](np.array([10 + 2, 8, 4]), np.array([0, 0, 1]), 100)
    assert batch.denominator == pytest.approx(denominator)
    by_trajectory = {}
    for micro_batch in batch.micro_batches:
        mask = micro_batch.loss_mask
        for weight, token in zip(
            micro_batch.weights[mask], micro_batch.token_ids[mask], strict=True
        ):
            by_trajectory.setdefault("aabc"[int(token) // 1000], set()).add(float(weight))
        assert (micro_batch.weights[~mask] == 0).all()
    expected = dict(zip("abc", weights, strict=True))
    assert {key: list(values) for key, values in by_trajectory.items()} == {
        key: [pytest.approx(value)] for key, value in expected.items()
    }
