"""Packing: from samples to micro-batches of bounded size.

Takes samples of any length, returns a `Batch`. No token is cut, padded or dropped, so the loss of
every token is what it would be in a batch of its own.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from rl.aggregation import Aggregation, token_mean
from rl.batch import Batch, MicroBatch, Sample


def pack(
    samples: Sequence[Sample],
    max_batch_tokens: int,
    aggregation: Aggregation = token_mean,
    max_sampled_tokens: int = 1,
) -> Batch:
    """Fill micro-batches with whole samples, longest first.

    Like lengths lie side by side: the chunk scan runs over all sequences of a micro-batch at once,
    padded to the longest, and this is what keeps that padding small. The order is deterministic.

    Args:
        samples: One step's.
        max_batch_tokens: Tokens of a micro-batch, at most.
        aggregation: Weighs the tokens of each trajectory, over all of its segments.
        max_sampled_tokens: Tokens that the policy may write in an episode, for aggregations with a
            constant denominator.

    Returns:
        The batch, with the one denominator of its loss.

    Raises:
        ValueError: no sample, or one that is longer than a micro-batch.
    """
    if not samples:
        raise ValueError("there is no sample to pack")
    by_length = sorted(samples, key=num_tokens, reverse=True)
    if num_tokens(by_length[0]) > max_batch_tokens:
        raise ValueError(
            f"a sample of {num_tokens(by_length[0])} tokens does not fit into "
            f"learner.max_batch_tokens = {max_batch_tokens}: raise it"
        )
    trajectories, groups = number_trajectories(by_length)
    loss_tokens = [int(sample.segment.loss_mask.sum()) for sample in by_length]
    tokens_of_trajectory = np.bincount(trajectories, weights=loss_tokens).astype(np.int64)
    # A trajectory without a loss token has a weight that multiplies nothing.
    lengths = np.maximum(1, tokens_of_trajectory)
    weights, denominator = aggregation(lengths, groups, max_sampled_tokens)
    bins: list[list[int]] = [[]]
    filled = 0
    for index, sample in enumerate(by_length):
        if filled + num_tokens(sample) > max_batch_tokens:
            bins.append([])
            filled = 0
        bins[-1].append(index)
        filled += num_tokens(sample)
    return Batch(
        micro_batches=tuple(
            MicroBatch.from_samples(
                [by_length[index] for index in members],
                [float(weights[trajectories[index]]) for index in members],
                [int(trajectories[index]) for index in members],
            )
            for members in bins
        ),
        num_loss_tokens=sum(loss_tokens),
        denominator=denominator,
        trajectory_ids=tuple(
            by_length[int(np.argmax(trajectories == number))].trajectory_id
            for number in range(len(groups))
        ),
    )


def number_trajectories(
    samples: Sequence[Sample],
) -> tuple[Int64[np.ndarray, " S"], Int64[np.ndarray, " I"]]:
    """Number the trajectories of samples, and the groups of those trajectories.

    Returns:
        Number of each sample's trajectory, from 0 without a gap, and of each trajectory's group.
    """
    numbers: dict[object, int] = {}
    groups: dict[object, int] = {}
    trajectories, group_of_trajectory = [], []
    for sample in samples:
        key = sample.trajectory_id if sample.trajectory_id is not None else id(sample)
        if key not in numbers:
            numbers[key] = len(numbers)
            group = sample.group_id if sample.group_id is not None else key
            group_of_trajectory.append(groups.setdefault(group, len(groups)))
        trajectories.append(numbers[key])
    return np.array(trajectories, dtype=np.int64), np.array(group_of_trajectory, dtype=np.int64)


def num_tokens(sample: Sample) -> int:
    """Tokens of a sample, those without loss included."""
    return len(sample.segment.token_ids)
