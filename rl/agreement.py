"""Agreement: do engine and learner give the same tokens the same log-probabilities?

Two measurements, both UNDER THE SAME VERSION of the weights, in nats per token:

- `check_trajectories`: the engine's behavior log-probs of what it sampled, against the learner's
  forward under the version that sampled it. A token counts only if every token before it was
  computed under that version too; the others are counted as mixed and compared with nothing, for
  no single set of weights ever produced them.
- `check_probe`: a fixed set of recorded token sequences that both score anew after every publish.

A gap far above rounding means that one of the two runs another model: a stale weight, a wrong mask,
another expert.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from jaxtyping import Float

from rl.learner import Learner
from rollout.group_statistics import count_mixed_version_tokens
from rollout.trajectory import Segment, Trajectory

Score = Callable[[list[int]], Awaitable[Float[np.ndarray, " T"]]]
"""The engine's side of the probe: `Collector.score`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Gaps |engine - learner| over tokens; sums, so that measurements add up."""

    num_tokens: int = 0
    """Tokens compared."""
    gap_sum: float = 0.0
    gap_max: float = 0.0
    num_mixed_tokens: int = 0
    """Tokens of the policy left out because their prefix was computed under several versions."""

    @property
    def gap_mean(self) -> float | None:
        """Mean gap, nats; None where nothing could be compared."""
        return self.gap_sum / self.num_tokens if self.num_tokens else None

    def __add__(self, other: Self) -> Self:
        return type(self)(
            num_tokens=self.num_tokens + other.num_tokens,
            gap_sum=self.gap_sum + other.gap_sum,
            gap_max=max(self.gap_max, other.gap_max),
            num_mixed_tokens=self.num_mixed_tokens + other.num_mixed_tokens,
        )

    @classmethod
    def compare(cls, engine: Float[np.ndarray, " T"], learner: Float[np.ndarray, " T"]) -> Self:
        """Measure the gap between two log-probs of the same tokens."""
        gap = np.abs(engine.astype(np.float64) - learner.astype(np.float64))
        return cls(
            num_tokens=len(gap),
            gap_sum=float(gap.sum()),
            gap_max=float(gap.max(initial=0.0)),
        )


def check_trajectories(
    learner: Learner, trajectories: Iterable[Trajectory], max_trajectories: int
) -> Agreement:
    """Compare behavior log-probs with the learner's under the version that sampled.

    Args:
        learner: Keeps the versions that sampled; its temperature is the trajectories'.
        trajectories: Of one step, in any order.
        max_trajectories: Bound on the work; taken evenly over `trajectories`. Mixed tokens are
            counted in all of them.

    Returns:
        Gaps over the POLICY tokens with a single-version prefix.
    """
    trajectories = list(trajectories)
    stride = max(1, len(trajectories) // max_trajectories)
    checked = trajectories[::stride][:max_trajectories]
    by_version: defaultdict[int, list[Segment]] = defaultdict(list)
    for trajectory in checked:
        for segment in trajectory.segments:
            prefix = choose_prefix(segment)
            if prefix.loss_mask.any():
                by_version[prefix.spans[0].policy_version].append(prefix)
    agreement = Agreement(num_mixed_tokens=sum(map(count_mixed_version_tokens, trajectories)))
    for version, segments in sorted(by_version.items()):
        scores = learner.logprobs(segments, version, learner.temperature)
        for segment, logprobs in zip(segments, scores, strict=True):
            mask = segment.loss_mask
            agreement += Agreement.compare(segment.behavior_logprobs[mask], logprobs[mask])
    return agreement


async def check_probe(learner: Learner, score: Score, probe: Sequence[Segment]) -> Agreement:
    """Let engine and learner score fixed token sequences under the learner's current version.

    Args:
        learner: Its version is the one just published.
        score: The engine's scorer (temperature 1).
        probe: Recorded segments. Their recorded experts are dropped: both sides choose anew, for
            the recorded choice was made under other weights. Both score over the vocabulary.

    Returns:
        Gaps over all tokens but the first of each sequence.
    """
    plain = [replace(segment, expert_ids=None, sampling_mask=None) for segment in probe]
    ours = await asyncio.to_thread(learner.logprobs, plain, learner.version, temperature=1.0)
    theirs = await asyncio.gather(*(score(segment.token_ids.tolist()) for segment in plain))
    agreement = Agreement()
    for engine, logprobs in zip(theirs, ours, strict=True):
        agreement += Agreement.compare(engine[1:], logprobs[1:])
    return agreement


def choose_prefix(segment: Segment) -> Segment:
    """Return the tokens of a segment up to the first change of version."""
    length = segment.single_version_length
    if length == len(segment.token_ids):
        return segment
    return Segment(
        token_ids=segment.token_ids[:length],
        spans=tuple(span for span in segment.spans if span.stop <= length),
        behavior_logprobs=segment.behavior_logprobs[:length],
        expert_ids=None if segment.expert_ids is None else segment.expert_ids[:length],
        sampling_mask=None
        if segment.sampling_mask is None
        else segment.sampling_mask.first(length),
    )
