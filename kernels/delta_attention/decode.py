"""One token of the delta rule for a batch of sequences, their states updated where they lie.

The recurrence as `kernels.delta_attention` writes it: every program reads a block of columns of one
state, forgets, corrects, reads and writes it back. The time is that of moving the state twice.
"""

# A kernel's arguments are what a launch passes by position, pointers and numbers of the device.
# ruff: noqa: ANN001, ANN201, PLR0917

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from kernels.aot import AotCase
from kernels.delta_attention.tiles import (
    Config,
    Kernel,
    Shape,
    load_matrix,
    load_row,
    store_matrix,
)


@triton.jit
def step_states(
    q,
    k,
    v,
    g,
    beta,
    pool,
    slots,
    out,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    WHOLE_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Advance one head of one sequence by one token, for a block of its values."""
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    column = tl.program_id(2) * BLOCK_V
    row = sequence.to(tl.int64) * H + head
    place = tl.load(slots + sequence) * H + head
    queries = load_row(q, row, 0, K, WHOLE_K).to(tl.float32)
    keys = load_row(k, row, 0, K, WHOLE_K).to(tl.float32)
    values = load_row(v, row, column, V, BLOCK_V).to(tl.float32)
    gates = load_row(g, row, 0, K, WHOLE_K).to(tl.float32)
    strength = tl.load(beta + row).to(tl.float32)
    state = load_matrix(pool, place, 0, column, K, V, WHOLE_K, BLOCK_V)
    state *= tl.exp(gates)[:, None]
    recalled = tl.sum(state * keys[:, None], axis=0)
    state += keys[:, None] * (strength * (values - recalled))[None, :]
    store_matrix(pool, state, place, column, K, V, WHOLE_K, BLOCK_V)
    read = tl.sum(state * queries[:, None], axis=0) * K**-0.5
    columns = column + tl.arange(0, BLOCK_V)
    tl.store(out + row * V + columns, read.to(out.dtype.element_ty), columns < V)


STEP_STATES = Kernel(
    function=step_states,
    configs=[Config(32, 4, 1), Config(16, 2, 1), Config(64, 4, 1), Config(128, 8, 1)],
    split="V",
)


def delta_step_triton(
    q: Float[Tensor, "B H K"],
    k: Float[Tensor, "B H K"],
    v: Float[Tensor, "B H V"],
    g: Float[Tensor, "B H K"],
    beta: Float[Tensor, "B H"],
    states: Float[Tensor, "N H K V"],
    slots: Int[Tensor, " B"],
) -> Float[Tensor, "B H V"]:
    """Advance B sequences by one token each, in place.

    Args:
        q: Queries, normalised to unit length; the factor K^(-1/2) is applied here.
        k: Keys, normalised to unit length.
        v: Values.
        g: Log-decay, nats.
        beta: Write strength in [0, 1].
        states: State per slot, float32; those named by `slots` are overwritten.
        slots: Slot of each sequence, all different.

    Returns:
        Outputs, in the type of `v`.

    Raises:
        ValueError: the states cannot be updated where they lie.
    """
    if states.dtype != torch.float32 or not states.is_contiguous():
        raise ValueError(
            f"delta_attention: states is {states.dtype} with strides {list(states.stride())}: they "
            "are updated in place and must be contiguous and float32"
        )
    batch, heads, key_width = q.shape
    out = torch.empty_like(v, memory_format=torch.contiguous_format)
    shape = Shape(H=heads, K=key_width, V=v.shape[2], DOT=tl.float32)
    inputs = (x.contiguous() for x in (q, k, v, g, beta))
    STEP_STATES.launch((batch, heads), shape, *inputs, states, slots.long().contiguous(), out)
    return out


def aot_cases() -> Sequence[AotCase]:
    """List every configuration of the decode kernel."""
    return list(STEP_STATES.aot_cases())
