"""The delta rule on cached states as a compiled loop, float32: one token after another.

The specification works on copies of the states, and gathering and scattering them is most of what
a decode step of a small model costs; here they are read and written where they lie. Heads of a few
dozen channels stay in the first-level cache, so that the loop is fast for long prompts too.
"""

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kernels.compiled import compiled

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
    storage = torch.empty(0, dtype=states.dtype).set_(states.untyped_storage()).numpy()
    state_starts = sequences.slots.numpy() * states.stride(0) + states.storage_offset()
    bounds = sequences.cu_seqlens.numpy().astype(np.int64)
    output = torch.empty(v.shape, dtype=v.dtype)
    inputs = tuple(x.contiguous().numpy() for x in (q, k, v, g, beta))
    scale = np.float32(1.0 / math.sqrt(q.shape[2]))
    _advance(inputs, scale, storage, state_starts, bounds, output.numpy())
    return output


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
    bounds: np.ndarray,
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
            for t in range(bounds[b], bounds[b + 1]):
                _forget(k, g, t, h, state, correction)
                for j in range(value_width):
                    correction[j] = beta[t, h] * (v[t, h, j] - correction[j])
                _correct(q, k, t, h, state, correction, read)
                for j in range(value_width):
                    output[t, h, j] = read[j] * scale
