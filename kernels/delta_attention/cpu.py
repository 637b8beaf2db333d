"""The delta rule as a compiled loop, float32: one token after another, for engine and learner.

The specification works on copies of the states, and gathering and scattering them is most of what
a decode step of a small model costs; here they are read and written where they lie. Heads of a few
dozen channels stay in the first-level cache, so that the loop is fast for long prompts too: faster
than chunks, whose gain is in matrix products that a GPU has units for, and in the backward pass.

Both callers run the one loop, so that the learner meets the bits that the engine recorded.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kernels.compiled import compiled
from kernels.delta_attention.segments import Segment, SegmentedDelta

if TYPE_CHECKING:
    from kernels.delta_attention.cached import CachedSequences

ZERO = np.float32(0.0)


def cached_delta_attention(
    q: Float[Tensor, "T H K"],
    k: Float[Tensor, "T H K"],
    v: Float[Tensor, "T H V"],
    g: Float[Tensor, "T H K"],
    beta: Float[Tensor, "T H"],
    states: Float[Tensor, "N H K V"],
    sequences: "CachedSequences",
) -> Float[Tensor, "T H V"]:
    """See `kernels.delta_attention.cached`."""
    bounds = sequences.cu_seqlens.numpy().astype(np.int64)
    output = torch.empty(v.shape, dtype=v.dtype)
    inputs = tuple(x.contiguous().numpy() for x in (q, k, v, g, beta))
    _run(inputs, states, sequences.slots.numpy(), (bounds[:-1], bounds[1:]), output)
    return output


class LoopedDelta(SegmentedDelta):
    """The chunked form with another forward: the loop.

    It keeps what the chunked forward keeps, the state that enters each segment, for the same
    backward: gradients are those of the chunked form, which agree with the loop's to rounding.
    """

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
        """Run the loop over each segment's tokens; keep the states that enter it."""
        inputs = tuple(x.contiguous().numpy() for x in (q, k, v, g, beta))
        output = torch.empty(v.shape, dtype=v.dtype)
        states = initial_state.clone(memory_format=torch.contiguous_format)
        entering: list[Tensor] = []
        for segment in segments:
            entering.append(states[segment.sequences].flatten(0, 1))
            starts, stops = np.array(segment.spans).T
            _run(inputs, states, np.array(segment.sequences), (starts, stops), output)
        ctx.save_for_backward(q, k, v, g, beta, *entering)
        ctx.segments = segments
        return output, states


def _run(
    inputs: tuple[np.ndarray, ...],
    states: Float[Tensor, "N H K V"],
    slots: np.ndarray,
    spans: tuple[np.ndarray, np.ndarray],
    output: Float[Tensor, "T H V"],
) -> None:
    """Advance the states at `slots` by their tokens, from the first to the last of each span."""
    storage = torch.empty(0, dtype=states.dtype).set_(states.untyped_storage()).numpy()
    state_starts = slots * states.stride(0) + states.storage_offset()
    starts, stops = (np.ascontiguousarray(bounds) for bounds in spans)
    scale = np.float32(1.0 / math.sqrt(inputs[0].shape[2]))
    _advance(inputs, scale, storage, state_starts, starts, stops, output.numpy())


@compiled
def _forget(
    k: np.ndarray, g: np.ndarray, t: int, h: int, state: np.ndarray, recalled: np.ndarray
) -> None:
    """Let a state decay, and read from it with token `t`'s key."""
    key_width, value_width = state.shape
    for j in range(value_width):
        recalled[j] = ZERO
    for i in range(key_width):
        kept = np.exp(g[t, h, i])
        key = k[t, h, i]
        for j in range(value_width):
            forgotten = state[i, j] * kept
            state[i, j] = forgotten
            recalled[j] += key * forgotten


@compiled
def _correct(
    q: np.ndarray,
    k: np.ndarray,
    t: int,
    h: int,
    state: np.ndarray,
    correction: np.ndarray,
    read: np.ndarray,
) -> None:
    """Write a correction under token `t`'s key, and read from the state with its query."""
    key_width, value_width = state.shape
    for j in range(value_width):
        read[j] = ZERO
    for i in range(key_width):
        key = k[t, h, i]
        query = q[t, h, i]
        for j in range(value_width):
            corrected = state[i, j] + key * correction[j]
            state[i, j] = corrected
            read[j] += query * corrected


@compiled
def _advance(
    inputs: tuple[np.ndarray, ...],
    scale: np.float32,
    storage: np.ndarray,
    state_starts: np.ndarray,
    starts: np.ndarray,
    stops: np.ndarray,
    output: np.ndarray,
) -> None:
    """Run the recurrence for each sequence and head on its state in `storage`."""
    q, k, v, g, beta = inputs
    _, num_heads, key_width = k.shape
    value_width = v.shape[2]
    size = key_width * value_width
    correction = np.empty(value_width, np.float32)
    read = np.empty(value_width, np.float32)
    for b in range(len(state_starts)):
        for h in range(num_heads):
            start = state_starts[b] + h * size
            state = storage[start : start + size].reshape(key_width, value_width)
            for t in range(starts[b], stops[b]):
                _forget(k, g, t, h, state, correction)
                for j in range(value_width):
                    correction[j] = beta[t, h] * (v[t, h, j] - correction[j])
                _correct(q, k, t, h, state, correction, read)
                for j in range(value_width):
                    output[t, h, j] = read[j] * scale
