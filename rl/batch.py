"""What the learner eats: samples with an advantage per token, and packed batches of them.

Arrays become tensors here: below this file everything is numpy, above it everything is torch.
Index `t` of every per-token tensor describes token `t`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from kernels.token_logprobs.support import Support
from rollout.sampling_mask import SamplingMask
from rollout.trajectory import Segment


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One segment with its credit: what a credit rule returns.

    Worked example, the segment of `Segment`'s docstring in an episode with advantage 0.5:

        tokens     <user> P P <end> <policy>  A  A  A  <tool> R <end> <policy>  A  A
        advantages 0      0 0 0     0        .5 .5 .5  0      0 0     0        .5 .5

    Raises:
        ValueError: lengths disagree, or an advantage is not finite, or not 0 off the loss mask.
    """

    segment: Segment
    advantages: Float32[np.ndarray, " T"]
    trajectory_id: str | None = None
    """Segments of one trajectory share it; None: the segment is all of its trajectory."""
    group_id: str | None = None
    """Trajectories of one group share it; None: the trajectory is all of its group."""

    def __post_init__(self) -> None:
        if len(self.advantages) != len(self.segment.token_ids):
            raise ValueError(
                f"{len(self.segment.token_ids)} tokens but {len(self.advantages)} advantages"
            )
        if not np.isfinite(self.advantages).all():
            raise ValueError("an advantage is not finite")
        if self.advantages[~self.segment.loss_mask].any():
            raise ValueError("a token that the policy did not write has an advantage")


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Whole segments laid end to end: one forward and backward of the learner.

    Sequence `s` holds the tokens `cu_seqlens[s]` to `cu_seqlens[s + 1]`.
    """

    token_ids: Int64[Tensor, " T"]
    cu_seqlens: Int64[Tensor, " S_plus_1"]
    loss_mask: Bool[Tensor, " T"]
    behavior_logprobs: Float32[Tensor, " T"]
    """Nats, temperature applied; 0 off the mask."""
    advantages: Float32[Tensor, " T"]
    expert_ids: Int64[Tensor, "T L A"] | None
    """Experts chosen by the engine, replayed by the learner; -1: the learner chooses."""
    weights: Float32[Tensor, " T"]
    """What a token's loss counts: the aggregation's, 0 off the mask."""
    trajectories: Int64[Tensor, " T"]
    """Number in the step of each token's trajectory."""
    support: Support | None = None
    """What each token was sampled from, replayed by the learner; None: the vocabulary."""
    proximal_logprobs: Float32[Tensor, " T"] | None = None
    """Under the weights at the start of the step, nats; None: those are the policy's own."""
    sequence_log_ratios: Float32[Tensor, " T"] | None = None
    """Mean log-ratio of the policy over the loss tokens of the token's trajectory, of all its
    segments, nats; None: not computed, only `gspo` needs it."""

    def __post_init__(self) -> None:
        num_tokens = len(self.token_ids)
        per_token = (self.loss_mask, self.behavior_logprobs, self.advantages)
        assert all(len(values) == num_tokens for values in (*per_token, self.weights))
        assert len(self.trajectories) == num_tokens
        assert self.expert_ids is None or len(self.expert_ids) == num_tokens
        assert int(self.cu_seqlens[0]) == 0
        assert int(self.cu_seqlens[-1]) == num_tokens

    @classmethod
    def from_samples(
        cls,
        samples: Sequence[Sample],
        weights: Sequence[float] | None = None,
        trajectories: Sequence[int] | None = None,
    ) -> Self:
        """Lay samples end to end, in the order given.

        Args:
            samples: At least one.
            weights: What the loss of a token of each sample counts; 1 if None.
            trajectories: Number of each sample's trajectory; each its own if None.
        """
        numbers = range(len(samples)) if trajectories is None else trajectories
        counts = [1.0] * len(samples) if weights is None else weights
        segments = [sample.segment for sample in samples]
        token_ids, cu_seqlens, expert_ids = lay_end_to_end(segments)
        return cls(
            token_ids=token_ids,
            cu_seqlens=cu_seqlens,
            loss_mask=torch.from_numpy(np.concatenate([s.loss_mask for s in segments])),
            behavior_logprobs=torch.from_numpy(
                np.concatenate([s.behavior_logprobs for s in segments])
            ),
            advantages=torch.from_numpy(np.concatenate([s.advantages for s in samples])),
            expert_ids=expert_ids,
            support=lay_supports(segments),
            weights=torch.from_numpy(
                np.concatenate(
                    [
                        segment.loss_mask * np.float32(count)
                        for segment, count in zip(segments, counts, strict=True)
                    ]
                )
            ),
            trajectories=torch.from_numpy(
                np.repeat(np.array(numbers, dtype=np.int64), [len(s.token_ids) for s in segments])
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """All samples of one step, as micro-batches."""

    micro_batches: tuple[MicroBatch, ...]
    num_loss_tokens: int
    """Tokens of the mask over ALL micro-batches."""
    denominator: float
    """Divides the weighted sum of all tokens' losses: one number for the whole step."""
    trajectory_ids: tuple[str | None, ...]
    """By the numbers that `MicroBatch.trajectories` uses."""


def lay_end_to_end(
    segments: Sequence[Segment],
) -> tuple[Int64[Tensor, " T"], Int64[Tensor, " S_plus_1"], Int64[Tensor, "T L A"] | None]:
    """Concatenate segments to the tensors that a forward needs.

    Args:
        segments: At least one.

    Returns:
        token_ids [T], cu_seqlens [S+1] and expert_ids [T, L, A] (None without routing).

    Raises:
        ValueError: no segment, or only some of them have expert ids.
    """
    if not segments:
        raise ValueError("there is no segment to lay end to end")
    token_ids = torch.from_numpy(np.concatenate([s.token_ids for s in segments])).long()
    lengths = [0, *(len(segment.token_ids) for segment in segments)]
    cu_seqlens = torch.tensor(lengths).cumsum(0)
    routed = [segment.expert_ids for segment in segments if segment.expert_ids is not None]
    if not routed:
        return token_ids, cu_seqlens, None
    if len(routed) != len(segments):
        raise ValueError(f"{len(routed)} of {len(segments)} segments have expert ids")
    return token_ids, cu_seqlens, torch.from_numpy(np.concatenate(routed)).long()


def lay_supports(segments: Sequence[Segment]) -> Support | None:
    """Concatenate what the tokens of segments were sampled from; None: all from the vocabulary."""
    masks = [segment.sampling_mask for segment in segments]
    if all(mask is None for mask in masks):
        return None
    joined = SamplingMask.join(
        [
            SamplingMask.whole(len(segment.token_ids)) if mask is None else mask
            for segment, mask in zip(segments, masks, strict=True)
        ]
    )
    return Support(
        token_ids=torch.from_numpy(joined.token_ids).long(),
        lengths=torch.from_numpy(joined.lengths).long(),
    )
