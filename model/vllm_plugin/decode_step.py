"""One token for each of B conversations through the delta rule, their memories updated in place.

`kernels.delta_attention.delta_attention_step` is the specification. It works on copies of the
memories, and gathering and scattering them is most of what a decode step of a small model costs;
the compiled loop here reads and writes the engine's cache where it lies.
"""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.delta_attention import delta_attention_step


def decode_step(
    q: Float[Tensor, "B H K"],
    k: Float[Tensor, "B H K"],
    v: Float[Tensor, "B H V"],
    g: Float[Tensor, "B H K"],
    beta: Float[Tensor, "B H"],
    memories: Float[Tensor, "N H K V"],
    slots: Int[Tensor, " B"],
) -> Float[Tensor, "B H V"]:
    """Advance the conversations whose memories lie at `slots` by one token each.

    Args:
        q: Queries, normalised to unit length.
        k: Keys, normalised to unit length.
        v: Values.
        g: Log-decays, nats.
        beta: Write strengths.
        memories: Of all pages; those at `slots` are replaced. Rows may lie apart in memory.
        slots: Page of each conversation, all different.
    """
    if memories.device.type != "cpu":
        output, memories[slots] = delta_attention_step(q, k, v, g, beta, memories[slots])
        return output
    assert memories[0].is_contiguous()
    storage = torch.empty(0, dtype=memories.dtype).set_(memories.untyped_storage())
    first = int(memories.storage_offset())
    starts = slots.numpy().astype(np.int64) * memories.stride(0) + first
    output = torch.empty_like(v, memory_format=torch.contiguous_format)
    inputs = (x.contiguous().numpy() for x in (q, k, v, g.exp(), beta))
    compiled()(*inputs, starts, storage.numpy(), output.numpy())
    return output


@cache
def compiled() -> Callable[..., None]:
    """Compile the loop, which takes seconds unless a run before left it on disk.

    Numba is imported here because vLLM examines every loaded module when a worker starts, and trips
    over numba's (`vllm.triton_utils.dispatcher._rebind_kernels`).
    """
    from numba import njit

    return njit(cache=True, fastmath=True)(_advance)


def _advance(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    decay: np.ndarray,
    beta: np.ndarray,
    starts: np.ndarray,
    storage: np.ndarray,
    output: np.ndarray,
) -> None:
    """Run the recurrence of `kernels.delta_attention` on memories at `starts` in `storage` [*]."""
    num_sequences, num_heads, key_width = k.shape
    value_width = v.shape[2]
    scale = np.float32(1.0 / math.sqrt(key_width))
    correction = np.empty(value_width, np.float32)
    for b in range(num_sequences):
        for h in range(num_heads):
            start = starts[b] + h * key_width * value_width
            read = output[b, h]
            read[:] = 0.0
            correction[:] = 0.0
            for i in range(key_width):
                row = storage[start + i * value_width : start + (i + 1) * value_width]
                kept = decay[b, h, i]
                key = k[b, h, i]
                for j in range(value_width):
                    forgotten = row[j] * kept
                    row[j] = forgotten
                    correction[j] += key * forgotten
            for j in range(value_width):
                correction[j] = beta[b, h] * (v[b, h, j] - correction[j])
            for i in range(key_width):
                row = storage[start + i * value_width : start + (i + 1) * value_width]
                key = k[b, h, i]
                query = q[b, h, i] * scale
                for j in range(value_width):
                    corrected = row[j] + key * correction[j]
                    row[j] = corrected
                    read[j] += query * corrected
