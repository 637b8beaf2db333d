"""The tokens of a running episode, in the order the engine saw them.

Takes rendered pieces and the engine's generations; returns a `Segment` when the episode has ended.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from jaxtyping import Int16

from rollout.engine import Generation
from rollout.renderer import Piece
from rollout.sampling_mask import SamplingMask
from rollout.trajectory import NO_EXPERT, Segment, Source, TokenSpan


class Transcript:
    """Grows at its end alone: what is recorded never changes."""

    def __init__(self) -> None:
        """Begin with no token."""
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._spans: list[TokenSpan] = []
        self._masks: list[SamplingMask] = []

    def __len__(self) -> int:
        return len(self._token_ids)

    def append_pieces(self, pieces: Sequence[Piece], *, turn: int, policy_version: int) -> None:
        """Record tokens that the policy did not write.

        Args:
            pieces: As the renderer gave them to the engine.
            turn: The turn they belong to: replies belong to the turn they answer.
            policy_version: The version under which the engine computed them.
        """
        for piece in pieces:
            logprobs = [0.0] * len(piece.token_ids)
            self._append(piece.token_ids, logprobs, piece.source, turn, policy_version)
            self._masks.append(SamplingMask.whole(len(piece.token_ids)))

    def append_generation(
        self, generation: Generation, *, turn: int, author: Source = Source.POLICY
    ) -> TokenSpan | None:
        """Record what the policy sampled, one span per policy version.

        Args:
            generation: As the engine gave it.
            turn: Index of the turn.
            author: In which role the policy wrote it.

        Returns:
            The span of the whole turn, of the version that sampled its first token; None where
            nothing was sampled.
        """
        num_sampled = len(generation.token_ids)
        if num_sampled == 0:
            return None
        start = len(self)
        self._masks.append(generation.sampling_mask or SamplingMask.whole(num_sampled))
        # A log-softmax in float32 may round to a hair above zero.
        logprobs = np.minimum(generation.logprobs, 0.0)
        changes = np.flatnonzero(np.diff(generation.versions)) + 1
        edges = [0, *changes.tolist(), num_sampled]
        for first, last in pairwise(edges):
            self._append(
                generation.token_ids[first:last].tolist(),
                logprobs[first:last].tolist(),
                author,
                turn,
                int(generation.versions[first]),
            )
        return TokenSpan(
            start=start,
            stop=len(self),
            source=author,
            turn=turn,
            policy_version=int(generation.versions[0]),
        )

    def to_segment(self, expert_ids: Int16[np.ndarray, "T L A"] | None = None) -> Segment:
        """Give the finished segment.

        Args:
            expert_ids: Routing of the computed tokens, from the first. The last sampled token is
                never computed, so that at most T - 1 rows are kept; the others get NO_EXPERT.
        """
        aligned = None
        if expert_ids is not None:
            aligned = np.full((len(self), *expert_ids.shape[1:]), NO_EXPERT, dtype=np.int16)
            num_rows = min(len(expert_ids), max(0, len(self) - 1))
            aligned[:num_rows] = expert_ids[:num_rows]
        is_masked = any(len(mask.token_ids) for mask in self._masks)
        return Segment(
            token_ids=np.array(self._token_ids, dtype=np.int32),
            spans=tuple(self._spans),
            behavior_logprobs=np.array(self._logprobs, dtype=np.float32),
            expert_ids=aligned,
            sampling_mask=SamplingMask.join(self._masks) if is_masked else None,
        )

    def _append(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        source: Source,
        turn: int,
        policy_version: int,
    ) -> None:
        """Append tokens, lengthening the last span where nothing but the place differs."""
        start = len(self)
        self._token_ids += token_ids
        self._logprobs += logprobs
        last = self._spans[-1] if self._spans else None
        if last is not None and (last.source, last.turn, last.policy_version) == (
            source,
            turn,
            policy_version,
        ):
            self._spans[-1] = replace(last, stop=len(self))
        elif token_ids:
            span = TokenSpan(
                start=start,
                stop=len(self),
                source=source,
                turn=turn,
                policy_version=policy_version,
            )
            self._spans.append(span)
