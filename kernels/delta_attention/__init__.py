"""Gated delta rule with a decay per channel: the sequence mixing of a KDA layer.

Per head, with state S [K, V] (S_0 = `initial_state`, or 0), for t = 1 .. T:

    S'_t = diag(exp(g_t)) S_{t-1}                  forget, channel by channel
    u_t  = beta_t (v_t - S'_t^T k_t)               what the memory gets wrong about k_t
    S_t  = S'_t + k_t u_t^T                        correct it
    o_t  = K^(-1/2) S_t^T q_t                      read, the current token included

Sequences are packed behind each other. They are computed in chunks of 64 tokens, whose ends lie
where the absolute position is a multiple of 64: where a sequence is split does not move them. Only
the forward in float32 on a CPU goes token by token, in the loop that the engine runs (`cached`):
what the learner computes then has the bits that the engine recorded. Its backward is chunked.

On a CPU a sequence gets the same bits whatever is packed beside it, and when it is split where a
chunk ends; `replay` builds on that. Tested in float32 with one and with two threads.

Source: Kimi Linear (arXiv 2510.26692) and the Kimi K3 report (arXiv 2607.24653), section 2.1.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.checks import check_cu_seqlens, check_tensors
from kernels.delta_attention.reference import delta_step
from kernels.delta_attention.segments import SegmentedDelta, plan_segments
from kernels.gate_bound import MIN_LOG_DECAY as MIN_LOG_DECAY
from kernels.lane import lane_of

OP = "delta_attention"


def delta_attention(
    q: Float[Tensor, "T H K"],
    k: Float[Tensor, "T H K"],
    v: Float[Tensor, "T H V"],
    g: Float[Tensor, "T H K"],
    beta: Float[Tensor, "T H"],
    cu_seqlens: Int[Tensor, " S1"],
    initial_state: Float[Tensor, "S H K V"] | None = None,
    starts: Int[Tensor, " S"] | None = None,
) -> tuple[Float[Tensor, "T H V"], Float[Tensor, "S H K V"]]:
    """Run the recurrence over packed sequences, differentiably; memory is flat in their length.

    Args:
        q: Queries, normalised to unit length; the factor K^(-1/2) is applied here.
        k: Keys, normalised to unit length.
        v: Values.
        g: Log-decay in [MIN_LOG_DECAY, 0], nats per token.
        beta: Write strength in [0, 1].
        cu_seqlens: Start of each sequence in the pack, and T at the end.
        initial_state: State before each sequence's first token; zeros if None.
        starts: Absolute position of each sequence's first token; 0 if None.

    Returns:
        Outputs in the inputs' type, and the state after each sequence's last token. States are
        float32 where the inputs are narrower.

    Raises:
        ValueError: a shape, type, device or stride does not fit, or the pack's bounds do not.
    """
    sizes = check_tensors(
        OP,
        {
            "q": (q, "T H K"),
            "k": (k, "T H K"),
            "v": (v, "T H V"),
            "g": (g, "T H K"),
            "beta": (beta, "T H"),
        },
    )
    bounds = check_cu_seqlens(OP, cu_seqlens, sizes["T"])
    shape = len(bounds) - 1, sizes["H"], sizes["K"], sizes["V"]
    if initial_state is None:
        state = q.new_zeros(shape, dtype=_state_dtype(q))
    else:
        _check_state("initial_state", initial_state, shape, q)
        state = initial_state
    positions = _checked_starts(starts, len(bounds) - 1)
    lane = lane_of(q)
    if lane == "triton":
        from kernels.delta_attention.launch import TritonDeltaAttention

        return TritonDeltaAttention.apply(q, k, v, g, beta, cu_seqlens, state, starts)  # pyright: ignore[reportReturnType]  torch types apply as Any
    segments = list(plan_segments(bounds, positions, sizes["H"], q.device))
    if lane == "cpu":
        from kernels.delta_attention.cpu import LoopedDelta

        return LoopedDelta.apply(q, k, v, g, beta, state, segments)  # pyright: ignore[reportReturnType]  torch types apply as Any
    return SegmentedDelta.apply(q, k, v, g, beta, state, segments)  # pyright: ignore[reportReturnType]  torch types apply as Any


def _state_dtype(x: Tensor) -> torch.dtype:
    """Return the type of states beside inputs like `x`: at least float32."""
    return torch.promote_types(x.dtype, torch.float32)


def _check_state(name: str, state: Tensor, shape: tuple[int, ...], like: Tensor) -> None:
    check_tensors(OP, {name: (state, "S H K V")}, **dict(zip("SHKV", shape, strict=True)))
    dtype = _state_dtype(like)
    if state.dtype != dtype or state.device != like.device:
        raise ValueError(
            f"{OP}: {name} is {state.dtype} on {state.device}, expected {dtype} on {like.device}"
        )


def _checked_starts(starts: Tensor | None, num_sequences: int) -> list[int] | None:
    if starts is None:
        return None
    if starts.shape != (num_sequences,) or starts.is_floating_point():
        raise ValueError(
            f"{OP}: starts is {starts.dtype} of shape {list(starts.shape)}, expected "
            f"{num_sequences} integers"
        )
    positions: list[int] = starts.tolist()
    if min(positions) < 0:
        raise ValueError(f"{OP}: starts holds {min(positions)}: a position is at least 0")
    return positions


def delta_attention_step(
    q: Float[Tensor, "B H K"],
    k: Float[Tensor, "B H K"],
    v: Float[Tensor, "B H V"],
    g: Float[Tensor, "B H K"],
    beta: Float[Tensor, "B H"],
    state: Float[Tensor, "B H K V"],
) -> tuple[Float[Tensor, "B H V"], Float[Tensor, "B H K V"]]:
    """Advance B independent sequences by one token each.

    Args:
        q: Queries, normalised to unit length; the factor K^(-1/2) is applied here.
        k: Keys, normalised to unit length.
        v: Values.
        g: Log-decay in [MIN_LOG_DECAY, 0], nats.
        beta: Write strength in [0, 1].
        state: State before the token; not changed. Float32 where the inputs are narrower.

    Returns:
        Outputs in the inputs' type, and the new states.

    Raises:
        ValueError: a shape, type, device or stride does not fit.
    """
    tensors = {
        "q": (q, "B H K"),
        "k": (k, "B H K"),
        "v": (v, "B H V"),
        "g": (g, "B H K"),
        "beta": (beta, "B H"),
    }
    sizes, dtype = check_tensors(OP, tensors), v.dtype
    _check_state("state", state, tuple(sizes[letter] for letter in "BHKV"), q)
    if lane_of(q) == "triton":
        from kernels.delta_attention.decode import delta_step_triton

        state = state.clone(memory_format=torch.contiguous_format)
        slots = torch.arange(len(q), device=q.device)
        return delta_step_triton(q, k, v, g, beta, state, slots), state
    q, k, v, g, beta = (x.to(state.dtype) for x in (q, k, v, g, beta))
    output, state = delta_step(q, k, v, g, beta, state)
    return output.to(dtype), state
