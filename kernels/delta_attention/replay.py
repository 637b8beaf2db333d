"""Decoding that equals the training forward bit for bit, by computing the open chunk again.

A step of the recurrence rounds differently from the same token in a chunk. Where decoding has to
reproduce what training will compute, it keeps the state at the last multiple of 64 tokens and the
inputs behind it, and hands those to `delta_attention` again with every new token: the same
operations on the same numbers. It costs one chunk per token instead of one step.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.delta_attention import delta_attention
from kernels.delta_attention.chunks import CHUNK


@dataclass(frozen=True, slots=True)
class OpenChunk:
    """Where one sequence stands."""

    state: Float[Tensor, "H K V"]
    """State before the chunk's first token."""
    position: int
    """Absolute position of that token."""
    inputs: tuple[Tensor, ...] = ()
    """q, k, v, g and beta of the chunk's tokens so far; empty if there are none."""


class ReplayState:
    """What replay keeps of B sequences; `delta_attention_replay` advances it in place."""

    def __init__(
        self,
        state: Float[Tensor, "B H K V"],
        starts: Int[Tensor, " B"] | None = None,
    ) -> None:
        """Begin B sequences, each at its own position.

        Args:
            state: State before each sequence's next token.
            starts: Absolute position of that token; 0 if None.
        """
        positions = [0] * len(state) if starts is None else starts.tolist()
        pairs = zip(state.unbind(), positions, strict=True)
        self.chunks = [OpenChunk(own, position) for own, position in pairs]


def delta_attention_replay(
    q: Float[Tensor, "T H K"],
    k: Float[Tensor, "T H K"],
    v: Float[Tensor, "T H V"],
    g: Float[Tensor, "T H K"],
    beta: Float[Tensor, "T H"],
    cu_seqlens: Int[Tensor, " B1"],
    state: ReplayState,
) -> Float[Tensor, "T H V"]:
    """Continue B sequences by the packed tokens, as if each had been computed in one piece.

    On a CPU, every output equals that of one `delta_attention` over the whole sequence in every
    bit, however the sequence is split into calls and whatever is packed beside it. This is tested
    in float32 with one and with two threads; it rests on MKL multiplying each matrix of a batch the
    same way whatever the size of the batch.

    Args:
        q: Queries, as in `delta_attention`.
        k: Keys.
        v: Values.
        g: Log-decays, nats.
        beta: Write strengths.
        cu_seqlens: Start of each sequence's new tokens, at least one, and T at the end.
        state: Where the sequences stand; advanced in place.

    Raises:
        ValueError: as in `delta_attention`, or the number of sequences is not that of `state`.
    """
    new = q, k, v, g, beta
    bounds = cu_seqlens.tolist()
    if len(bounds) - 1 != len(state.chunks):
        raise ValueError(
            f"delta_attention_replay: cu_seqlens holds {len(bounds) - 1} sequences, the state "
            f"{len(state.chunks)}"
        )
    outputs: list[list[Tensor]] = [[] for _ in state.chunks]
    spans = zip(state.chunks, itertools.pairwise(bounds), strict=True)
    waiting = [_append(chunk, tuple(x[start:stop] for x in new)) for chunk, (start, stop) in spans]
    # The chunks that are full now leave a state behind them; the rest is computed from there.
    full = [_full_tokens(chunk) for chunk in waiting]
    for row, output, final in _attend(waiting, full):
        outputs[row].append(output)
        left = tuple(x[full[row] :].clone() for x in waiting[row].inputs)
        waiting[row] = OpenChunk(final, waiting[row].position + full[row], left)
    for row, output, _ in _attend(waiting, [len(chunk.inputs[0]) for chunk in waiting]):
        outputs[row].append(output)
    state.chunks = waiting
    sizes = (stop - start for start, stop in itertools.pairwise(bounds))
    return torch.cat([torch.cat(own)[-size:] for own, size in zip(outputs, sizes, strict=True)])


def _append(chunk: OpenChunk, new: tuple[Tensor, ...]) -> OpenChunk:
    if chunk.inputs:
        new = tuple(torch.cat(pair) for pair in zip(chunk.inputs, new, strict=True))
    return OpenChunk(chunk.state, chunk.position, new)


def _full_tokens(chunk: OpenChunk) -> int:
    """How many tokens lie before the last multiple of CHUNK that the sequence has reached."""
    reached = chunk.position + len(chunk.inputs[0])
    return max(reached - reached % CHUNK - chunk.position, 0)


def _attend(
    chunks: Sequence[OpenChunk], counts: Sequence[int]
) -> list[tuple[int, Tensor, Float[Tensor, "H K V"]]]:
    """Run the first tokens of each sequence that has any; return its row, outputs and state."""
    rows = [row for row, count in enumerate(counts) if count]
    if not rows:
        return []
    columns = zip(*([x[: counts[row]] for x in chunks[row].inputs] for row in rows), strict=True)
    bounds = list(itertools.accumulate((counts[row] for row in rows), initial=0))
    output, final = delta_attention(
        *(torch.cat(column) for column in columns),
        cu_seqlens=torch.tensor(bounds),
        initial_state=torch.stack([chunks[row].state for row in rows]),
        starts=torch.tensor([chunks[row].position for row in rows]),
    )
    outputs = output.split([counts[row] for row in rows])
    return list(zip(rows, outputs, final.unbind(), strict=True))
