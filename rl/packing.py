"""Packing: from samples to micro-batches of bounded size.

Takes samples of any length, returns a `Batch`. No token is cut, padded or dropped, so the loss of
every token is what it would be in a batch of its own.
"""

from collections.abc import Sequence

from rl.batch import Batch, MicroBatch, Sample


def pack(samples: Sequence[Sample], max_batch_tokens: int) -> Batch:
    """Fill micro-batches with whole samples, longest first.

    Like lengths lie side by side: the chunk scan runs over all sequences of a micro-batch at once,
    padded to the longest, and this is what keeps that padding small. The order is deterministic.

    Args:
        samples: One step's.
        max_batch_tokens: Tokens of a micro-batch, at most.

    Returns:
        The batch, with the global number of loss tokens.

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
    bins: list[list[Sample]] = [[]]
    filled = 0
    for sample in by_length:
        if filled + num_tokens(sample) > max_batch_tokens:
            bins.append([])
            filled = 0
        bins[-1].append(sample)
        filled += num_tokens(sample)
    return Batch(
        micro_batches=tuple(MicroBatch.from_samples(members) for members in bins),
        num_loss_tokens=sum(int(sample.segment.loss_mask.sum()) for sample in samples),
    )


def num_tokens(sample: Sample) -> int:
    """Tokens of a sample, those without loss included."""
    return len(sample.segment.token_ids)
