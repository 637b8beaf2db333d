"""The delta rule in PyTorch: token by token (the specification) and in chunks (for training).

The chunked form solves the recurrence inside a chunk of C tokens as a triangular system. With G the
inclusive cumulative sum of g inside the chunk, and the state S that enters it:

    A_kk[i, j] = beta_i sum_c k_ic k_jc exp(G_ic - G_jc)          j < i
    A_qk[i, j] = K^(-1/2) sum_c q_ic k_jc exp(G_ic - G_jc)        j <= i
    Tm = (I + A_kk)^(-1) diag(beta)
    W  = Tm (exp(G) * k),   U = Tm v
    V~ = U - W S
    O  = K^(-1/2) (q * exp(G)) S + A_qk V~
    S <- diag(exp(G_C)) S + (k * exp(G_C - G))^T V~

exp(G_i - G_j) is split into exp(G_i - R) exp(R - G_j) so that A_kk and A_qk are matrix products.
R is G at the middle of the chunk: each factor then spans at most C/2 tokens, which at a log-decay
of -5 per token is 40 nats, far from the 88 at which float32 overflows.
"""

import torch
from jaxtyping import Float
from torch import Tensor

CHUNK = 16
"""Tokens per chunk."""


def delta_step(
    q: Float[Tensor, "B H K"],
    k: Float[Tensor, "B H K"],
    v: Float[Tensor, "B H V"],
    g: Float[Tensor, "B H K"],
    beta: Float[Tensor, "B H"],
    state: Float[Tensor, "B H K V"],
) -> tuple[Float[Tensor, "B H V"], Float[Tensor, "B H K V"]]:
    """One token of the recurrence for B sequences; see `kernels.delta_attention`."""
    decayed = state * g.exp().unsqueeze(-1)
    recalled = (k.unsqueeze(-2) @ decayed).squeeze(-2)
    correction = beta.unsqueeze(-1) * (v - recalled)
    state = decayed + k.unsqueeze(-1) * correction.unsqueeze(-2)
    scaled_q = q * q.shape[-1] ** -0.5
    return (scaled_q.unsqueeze(-2) @ state).squeeze(-2), state


def delta_recurrent(
    q: Float[Tensor, "S T H K"],
    k: Float[Tensor, "S T H K"],
    v: Float[Tensor, "S T H V"],
    g: Float[Tensor, "S T H K"],
    beta: Float[Tensor, "S T H"],
    initial_state: Float[Tensor, "S H K V"] | None = None,
) -> tuple[Float[Tensor, "S T H V"], Float[Tensor, "S H K V"]]:
    """The recurrence as it is written, one token after another."""
    num_sequences, num_tokens, num_heads, key_width = k.shape
    state = initial_state
    if state is None:
        state = v.new_zeros(num_sequences, num_heads, key_width, v.shape[-1])
    outputs = []
    for t in range(num_tokens):
        output, state = delta_step(q[:, t], k[:, t], v[:, t], g[:, t], beta[:, t], state)
        outputs.append(output)
    return torch.stack(outputs, dim=1), state


def _into_chunks(x: Float[Tensor, "S T H X"], num_chunks: int) -> Float[Tensor, "NSH C X"]:
    num_sequences, num_tokens, num_heads, width = x.shape
    missing = num_chunks * CHUNK - num_tokens
    if missing:
        x = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, missing))
    x = x.view(num_sequences, num_chunks, CHUNK, num_heads, width).permute(1, 0, 3, 2, 4)
    return x.reshape(num_chunks * num_sequences * num_heads, CHUNK, width)


def delta_chunked(
    q: Float[Tensor, "S T H K"],
    k: Float[Tensor, "S T H K"],
    v: Float[Tensor, "S T H V"],
    g: Float[Tensor, "S T H K"],
    beta: Float[Tensor, "S T H"],
    initial_state: Float[Tensor, "S H K V"] | None = None,
) -> tuple[Float[Tensor, "S T H V"], Float[Tensor, "S H K V"]]:
    """The recurrence in chunks: all chunks at once, but for a short loop that carries the state."""
    num_sequences, num_tokens, num_heads, key_width = k.shape
    value_width = v.shape[-1]
    num_chunks = -(-num_tokens // CHUNK)
    # N chunks, R = S * H independent recurrences: everything below is [N * R, C, .].
    q, k, v, g = (_into_chunks(x, num_chunks) for x in (q, k, v, g))
    beta = _into_chunks(beta.unsqueeze(-1), num_chunks)

    # M @ g is G - R: sums from the middle of the chunk, never the difference of two large sums.
    token = torch.arange(CHUNK, device=g.device)
    from_middle = (token[None] <= token[:, None]).to(g.dtype) - (token < CHUNK // 2).to(g.dtype)
    log_decay = from_middle @ g
    grow = log_decay.exp()  # exp(G - R)
    q_grown = q * grow
    k_grown = k * grow
    k_shrunk = (k * (-log_decay).exp()).transpose(-1, -2)  # exp(R - G)

    mixing = (q_grown @ k_shrunk).tril()
    coupling = (k_grown @ k_shrunk) * beta
    # The solver reads A_kk below the diagonal, and takes the diagonal to be one.
    inverse = torch.linalg.solve_triangular(
        coupling, torch.eye(CHUNK, dtype=g.dtype, device=g.device), upper=False, unitriangular=True
    )
    solve = inverse * beta.transpose(-1, -2)
    erase, write = solve @ k_grown, solve @ v

    # The state is carried relative to R: S_R = exp(R) S at a chunk's start, and exp(G_C - R) at
    # its end, so that no token needs a second scaling.
    to_middle = g[:, : CHUNK // 2].sum(dim=1).exp().unsqueeze(-1)
    to_end = grow[:, -1].unsqueeze(-1)
    rows = num_sequences * num_heads
    state = q.new_zeros(rows, key_width, value_width)
    if initial_state is not None:
        state = initial_state.reshape(rows, key_width, value_width)
    states, corrections = [], []
    parts = (to_middle, to_end, erase, write, k_shrunk)
    per_chunk = (x.view(num_chunks, rows, *x.shape[1:]).unbind() for x in parts)
    for to_middle_n, to_end_n, erase_n, write_n, store_n in zip(*per_chunk, strict=True):
        state = state * to_middle_n
        correction = torch.baddbmm(write_n, erase_n, state, alpha=-1)
        states.append(state)
        corrections.append(correction)
        state = torch.baddbmm(state, store_n, correction) * to_end_n
    scale = key_width**-0.5
    output = q_grown @ torch.cat(states)
    output = torch.baddbmm(output, mixing, torch.cat(corrections), beta=scale, alpha=scale)
    output = output.view(num_chunks, num_sequences, num_heads, CHUNK, value_width)
    output = output.permute(1, 0, 3, 2, 4).reshape(num_sequences, -1, num_heads, value_width)
    return output[:, :num_tokens], state.view(num_sequences, num_heads, key_width, value_width)
