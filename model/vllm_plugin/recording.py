"""What the engine computed for each conversation: routing of every token, and counts.

The vLLM model calls `record` once per forward with the positions it computed and the experts it
chose. Positions tell new tokens from recomputed ones: a position that a conversation already passed
is computed again, either because vLLM preempted the request or because a publish ordered it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int16, Int64

CONVERSATION = "conversation/"
"""Prefix of the request ids that are recorded; other requests (scoring) are not."""


def external_id(request_id: str) -> str:
    """Request id as the caller gave it: vLLM appends a dash and random characters."""
    return request_id.rsplit("-", 1)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRecord:
    """What one conversation cost, and the routing of its tokens."""

    expert_ids: Int16[np.ndarray, "T L A"]
    """Experts of each token, in order, from its first computation."""
    computed_tokens: int
    """Tokens computed, those that a publish ordered again excluded."""
    publish_recomputed_tokens: int


@dataclass(slots=True)
class _OpenRecord:
    """A record that grows. `rows` are views of each step's array, concatenated when taken."""

    rows: list[Int16[np.ndarray, "T L A"]] = field(default_factory=list)
    num_tokens: int = 0
    computed_tokens: int = 0
    publish_recomputed_tokens: int = 0
    recompute_until: int = 0
    """Positions below this are computed again because of a publish; 0: none."""


class Recorder:
    """Records every forward of the engine, per conversation."""

    def __init__(self) -> None:
        self._open: dict[str, _OpenRecord] = {}

    def record(
        self,
        request_ids: Sequence[str],
        offsets: Sequence[int],
        positions: Int64[np.ndarray, " T"],
        expert_ids: Int16[np.ndarray, "T L A"],
    ) -> None:
        """Note one forward.

        Args:
            request_ids: vLLM's request ids, in batch order.
            offsets: Row at which each request's tokens start, and the end: one more than requests.
            positions: Position of each row's token in its conversation.
            expert_ids: Experts chosen for each row.
        """
        for index, request_id in enumerate(request_ids):
            if not request_id.startswith(CONVERSATION):
                continue
            start, stop = offsets[index], offsets[index + 1]
            if stop > start:
                name = external_id(request_id)
                record = self._open.get(name)
                if record is None:
                    record = self._open[name] = _OpenRecord()
                _extend(record, int(positions[start]), expert_ids[start:stop])

    def expect_recomputation(self) -> None:
        """A publish dropped every state: what was computed so far will be computed again."""
        for record in self._open.values():
            record.recompute_until = record.num_tokens

    def take(self, name: str) -> ConversationRecord | None:
        """Remove and return a conversation's record; None if nothing was computed for it."""
        record = self._open.pop(name, None)
        if record is None:
            return None
        return ConversationRecord(
            expert_ids=np.concatenate(record.rows),
            computed_tokens=record.computed_tokens,
            publish_recomputed_tokens=record.publish_recomputed_tokens,
        )


def _extend(record: _OpenRecord, first: int, rows: Int16[np.ndarray, "T L A"]) -> None:
    stop = first + len(rows)
    assert first <= record.num_tokens, f"positions {record.num_tokens} to {first} were skipped"
    ordered = max(0, min(stop, record.recompute_until) - first)
    record.publish_recomputed_tokens += ordered
    record.computed_tokens += len(rows) - ordered
    if stop >= record.recompute_until:
        record.recompute_until = 0
    new = stop - record.num_tokens
    if new > 0:
        record.rows.append(rows[len(rows) - new :])
        record.num_tokens = stop
