"""Packed sequences through the delta rule, segment by segment, in memory flat in their length.

A segment is some chunks of some sequences. The forward pass keeps the state at each segment's
start and nothing else; the backward pass walks the segments in reverse and computes each again.
Inside a segment all chunks are prepared at once, and the state passes through them in a loop over
the chunk's number, all sequences of the segment at once.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.delta_attention.chunks import (
    CHUNK,
    Chunks,
    Inputs,
    Upstream,
    prepare,
    prepare_backward,
)

MATRICES = 128
"""Chunks times heads that a segment should hold: enough to fill a matrix product's batch, few
enough that a segment's intermediate results (120 KiB each at K = V = 32) stay near the core."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Chunks of consecutive numbers of some sequences, the longest sequence first."""

    sequences: Sequence[int]
    """Sequences in it. Those that end earlier come last."""
    alive: Sequence[int]
    """Per chunk number: how many of `sequences` have that chunk; never increases."""
    tokens: Int[Tensor, " P*C"]
    """Token in each row: chunks by number, then by sequence. T, no token, behind a chunk's last."""
    padding: Int[Tensor, " X"]
    """Rows without a token."""
    spans: Sequence[tuple[int, int]]
    """Per sequence: first token of it that lies in the segment, and the token behind the last; none
    where the sequence has ended before."""
    is_first: bool
    """Whether its sequences start in it."""
    is_last: bool
    """Whether its sequences end in it."""


def plan_segments(
    bounds: Sequence[int],
    starts: Sequence[int] | None,
    num_heads: int,
    device: torch.device,
) -> Iterator[Segment]:
    """Divide a pack into segments, such that each sequence's come in order.

    Args:
        bounds: Start of each sequence in the pack, and the pack's length at the end.
        starts: Absolute position of each sequence's first token; 0 if None. Chunks end where the
            absolute position is a multiple of CHUNK.
        num_heads: H.
        device: Of the pack.
    """
    spans = list(itertools.pairwise(bounds))
    chunks = [
        [start, *range(start + CHUNK - (starts[row] if starts else 0) % CHUNK, stop, CHUNK), stop]
        for row, (start, stop) in enumerate(spans)
    ]
    # Sequences of like length share a segment: none waits long for another.
    order = sorted(range(len(chunks)), key=lambda row: -len(chunks[row]))
    size = max(1, MATRICES // num_heads)
    for rows in (order[i : i + size] for i in range(0, len(order), size)):
        longest = len(chunks[rows[0]]) - 1
        step = max(1, size // len(rows))
        for first in range(0, longest, step):
            numbers = range(first, min(first + step, longest))
            pieces = [
                [chunks[row][number : number + 2] for row in rows if number + 1 < len(chunks[row])]
                for number in numbers
            ]
            tokens = _rows(list(itertools.chain(*pieces)), bounds[-1]).to(device)
            yield Segment(
                sequences=rows,
                alive=[len(piece) for piece in pieces],
                tokens=tokens,
                padding=(tokens == bounds[-1]).nonzero().squeeze(1),
                spans=[_span(chunks[row], numbers) for row in rows],
                is_first=first == 0,
                is_last=numbers.stop == longest,
            )


def _span(ends: Sequence[int], numbers: range) -> tuple[int, int]:
    """Return the tokens of a sequence's chunks of these numbers; `ends` are its chunks' bounds."""
    last = len(ends) - 1
    return ends[min(numbers.start, last)], ends[min(numbers.stop, last)]


def _rows(chunks: list[list[int]], num_tokens: int) -> Int[Tensor, " P*C"]:
    ends = torch.tensor(chunks)
    tokens = ends[:, :1] + torch.arange(CHUNK)
    return tokens.masked_fill_(tokens >= ends[:, 1:], num_tokens).flatten()


class SegmentedDelta(torch.autograd.Function):
    """See `kernels.delta_attention`; also takes the gradient of the final state."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        initial_state: Tensor,
        segments: Sequence[Segment],
    ) -> tuple[Tensor, Tensor]:
        """Pass the state through the segments; keep what enters each."""
        inputs = q, k, v, g, beta
        num_tokens, num_heads, value_width = v.shape
        output = v.new_empty(num_tokens + 1, num_heads, value_width)  # the last row takes padding
        final_state = torch.empty_like(initial_state)
        entering: list[Tensor] = []
        state = initial_state
        for segment in segments:
            if segment.is_first:
                state = initial_state[segment.sequences].flatten(0, 1)
            entering.append(state.clone())
            chunks = prepare(Inputs(*_gather(inputs, segment, state.dtype)))
            attended = attend(chunks, state, segment.alive)
            _scatter(read_out(chunks, attended), output, segment)
            if segment.is_last:
                final_state[segment.sequences] = state.unflatten(0, (-1, num_heads))
        ctx.save_for_backward(*inputs, *entering)
        ctx.segments = segments
        return output[:num_tokens], final_state

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  the decorator hides ctx
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        *grads: Tensor,
    ) -> tuple[Tensor | None, ...]:
        """Walk the segments in reverse, each computed again from the state that entered it."""
        q, k, v, g, beta, *entering = ctx.saved_tensors
        inputs = q, k, v, g, beta
        output_grad, final_grad = grads
        num_heads = v.shape[1]
        input_grads = tuple(x.new_empty(len(x) + 1, *x.shape[1:]) for x in inputs)
        initial_grad = torch.empty_like(final_grad)
        state_grad = final_grad
        for segment, state in zip(reversed(ctx.segments), reversed(entering), strict=True):
            if segment.is_last:
                state_grad = final_grad[segment.sequences].flatten(0, 1)
            rows = Inputs(*_gather(inputs, segment, state.dtype))
            chunks = prepare(rows)
            attended = attend(chunks, state.clone(), segment.alive)
            (upstream,) = _gather((output_grad,), segment, state.dtype)
            pulled = attend_backward(chunks, attended, upstream, state_grad, segment.alive)
            row_grads = prepare_backward(rows, chunks, pulled)
            for name, grad in zip(("q", "k", "v", "g", "beta"), input_grads, strict=True):
                _scatter(getattr(row_grads, name), grad, segment)
            if segment.is_first:
                initial_grad[segment.sequences] = state_grad.unflatten(0, (-1, num_heads))
        return *(grad[:-1] for grad in input_grads), initial_grad, None


def delta_chunked(
    q: Float[Tensor, "T H K"],
    k: Float[Tensor, "T H K"],
    v: Float[Tensor, "T H V"],
    g: Float[Tensor, "T H K"],
    beta: Float[Tensor, "T H"],
    cu_seqlens: Int[Tensor, " S1"],
    initial_state: Float[Tensor, "S H K V"] | None = None,
    starts: Int[Tensor, " S"] | None = None,
) -> tuple[Float[Tensor, "T H V"], Float[Tensor, "S H K V"]]:
    """Run forward and backward in chunks, whatever the lane; see `kernels.delta_attention`.

    The tensors are taken as they come: `delta_attention` is where they are checked.
    """
    bounds: list[int] = cu_seqlens.tolist()
    if initial_state is None:
        dtype = torch.promote_types(q.dtype, torch.float32)
        initial_state = q.new_zeros(len(bounds) - 1, *k.shape[1:], v.shape[-1], dtype=dtype)
    positions = None if starts is None else starts.tolist()
    segments = list(plan_segments(bounds, positions, q.shape[1], q.device))
    return SegmentedDelta.apply(q, k, v, g, beta, initial_state, segments)  # pyright: ignore[reportReturnType]  torch types apply as Any


@dataclass(frozen=True, slots=True)
class Attended:
    """A segment's chunks once states have passed through them; rows as in the segment."""

    states: Float[Tensor, "N K V"]
    """State that entered each chunk."""
    corrections: Float[Tensor, "N C V"]
    """V~."""


def attend(chunks: Chunks, state: Float[Tensor, "R K V"], alive: Sequence[int]) -> Attended:
    """Pass each sequence's state through its chunks; `state` is replaced in place.

    Args:
        chunks: Chunks by number, then sequence, then head.
        state: State that enters the segment, by sequence, then head.
        alive: As in `Segment`.
    """
    sizes = [count * (len(chunks.kept) // sum(alive)) for count in alive]
    states = state.new_empty(len(chunks.kept), *state.shape[1:])
    corrections = torch.empty_like(chunks.values)
    parts = chunks.values, chunks.erase, chunks.inverse, chunks.write.mT, chunks.kept
    by_number = zip(*(x.split(sizes) for x in (*parts, states, corrections)), strict=True)
    for value, erase, inverse, write, kept, entering, correction in by_number:
        current = state[: len(value)]
        entering.copy_(current)
        torch.bmm(inverse, torch.baddbmm(value, erase, current, alpha=-1), out=correction)
        current.mul_(kept).baddbmm_(write, correction)
    return Attended(states, corrections)


def read_out(chunks: Chunks, attended: Attended) -> Float[Tensor, "N C V"]:
    """Compute every token's output."""
    scale = chunks.query.shape[-1] ** -0.5
    output = torch.bmm(chunks.query, attended.states)
    return output.baddbmm_(chunks.mixing, attended.corrections, beta=scale, alpha=scale)


def attend_backward(
    chunks: Chunks,
    attended: Attended,
    output_grad: Float[Tensor, "N C V"],
    state_grad: Float[Tensor, "R K V"],
    alive: Sequence[int],
) -> Upstream:
    """Pass the gradient of the state back through the chunks; it is replaced in place."""
    sizes = [count * (len(chunks.kept) // sum(alive)) for count in alive]
    output_grad = output_grad * chunks.query.shape[-1] ** -0.5
    state_grads = torch.empty_like(attended.states)  # of the states that leave
    values = torch.empty_like(chunks.values)
    pulled = torch.bmm(chunks.mixing.mT, output_grad), torch.bmm(chunks.query.mT, output_grad)
    parts = chunks.write, chunks.inverse.mT, chunks.kept, chunks.erase.mT
    by_number = [x.split(sizes) for x in (*pulled, *parts, state_grads, values)]
    for mixed, queried, write, inverse, kept, erase, leaving, value in zip(
        *(reversed(part) for part in by_number), strict=True
    ):
        current = state_grad[: len(value)]
        leaving.copy_(current)
        torch.bmm(inverse, torch.baddbmm(mixed, write, current), out=value)
        current.mul_(kept).add_(queried).baddbmm_(erase, value, alpha=-1)
    states, corrections = attended.states, attended.corrections
    write = torch.bmm(corrections, state_grads.mT)
    log_kept = (states * state_grads).sum(dim=-1) * chunks.kept.squeeze(-1)
    return Upstream(
        query=torch.bmm(output_grad, states.mT),
        erase=torch.bmm(values, states.mT).neg_(),
        write=write,
        values=values,
        log_kept=log_kept + (write * chunks.write).sum(dim=1),
        mixing=torch.bmm(output_grad, corrections.mT),
        coupling=torch.bmm(values, corrections.mT).neg_(),
    )


def _gather(
    xs: Sequence[Float[Tensor, " T H *X"]], segment: Segment, dtype: torch.dtype
) -> list[Float[Tensor, "N C X"]]:
    """Lay a segment's tokens out in chunks, one per head, zeros behind a chunk's last token."""
    sources = segment.tokens.clamp(max=len(xs[0]) - 1)
    gathered = []
    for x in xs:
        rows = x.index_select(0, sources).index_fill_(0, segment.padding, 0.0)
        rows = rows.view(-1, CHUNK, x.shape[1], x.shape[2] if x.dim() == 3 else 1)
        gathered.append(rows.transpose(1, 2).to(dtype).flatten(0, 1).contiguous())
    return gathered


def _scatter(rows: Float[Tensor, "N C X"], into: Tensor, segment: Segment) -> None:
    """Undo `_gather`; what lies behind a chunk's last token goes to the last row of `into`."""
    rows = rows.unflatten(0, (-1, into.shape[1])).transpose(1, 2).to(into.dtype)
    into.index_copy_(0, segment.tokens, rows.reshape(-1, *into.shape[1:]))
