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


class UnitLowerInverse(torch.autograd.Function):
    """(I + A)^(-1) for strictly lower triangular A [..., C, C], C a power of two.

    Inverses of diagonal blocks are merged pairwise, doubling the block each time: as stable as
    forward substitution, but made of matrix products. With X the block-diagonal inverse so far and
    A_m the part of A that couples the two halves of each merged block, X <- X - X A_m X.
    """

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, matrix: Tensor) -> Tensor:
        """Invert; `matrix` is A."""
        size = matrix.shape[-1]
        index = torch.arange(size, device=matrix.device)
        inverse = torch.eye(size, dtype=matrix.dtype, device=matrix.device) - matrix * (
            index[:, None] // 2 == index[None, :] // 2
        )
        block = 2
        while block < size:
            couples = (index[:, None] // (2 * block) == index[None, :] // (2 * block)) & (
                index[:, None] // block != index[None, :] // block
            )
            inverse = inverse - inverse @ (matrix * couples) @ inverse
            block *= 2
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> Tensor:
        """Pull the gradient dX of the inverse back: dA = -(X^T dX X^T), strictly lower."""
        (inverse,) = ctx.saved_tensors  # pyright: ignore[reportAttributeAccessIssue]  torch's stub
        transposed = inverse.transpose(-1, -2)
        return -(transposed @ grads[0] @ transposed).tril(-1)


def _into_chunks(x: Float[Tensor, "S T H X"], num_chunks: int) -> Float[Tensor, "N SH C X"]:
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

    log_decay = g.cumsum(dim=-2)
    middle = log_decay[:, CHUNK // 2 - 1 : CHUNK // 2]
    last = log_decay[:, -1:]
    grow = (log_decay - middle).exp()  # exp(G - R)
    shrink = grow.reciprocal()  # exp(R - G)
    q_grown = q * (grow * key_width**-0.5)
    k_grown = k * grow
    k_shrunk = (k * shrink).transpose(-1, -2)
    from_start = middle.exp()  # exp(R): from the state's reference to the chunk's
    to_end = (last - middle).exp()

    mixing = (q_grown @ k_shrunk).tril()
    coupling = ((k_grown * beta) @ k_shrunk).tril(-1)
    inverse: Tensor = UnitLowerInverse.apply(coupling)  # pyright: ignore[reportAssignmentType]
    solve = inverse * beta.transpose(-1, -2)
    erase = solve @ (k_grown * from_start)
    write = solve @ v
    read = q_grown * from_start
    store = k_shrunk * to_end.transpose(-1, -2)
    keep = last.exp().transpose(-1, -2)

    rows = num_sequences * num_heads
    state = q.new_zeros(rows, key_width, value_width)
    if initial_state is not None:
        state = initial_state.reshape(rows, key_width, value_width)
    states, corrections = [], []
    per_chunk = (
        x.view(num_chunks, rows, *x.shape[1:]).unbind() for x in (erase, write, store, keep)
    )
    for erase_n, write_n, store_n, keep_n in zip(*per_chunk, strict=True):
        states.append(state)
        corrections.append(torch.baddbmm(write_n, erase_n, state, alpha=-1))
        state = torch.baddbmm(state * keep_n, store_n, corrections[-1])
    output = torch.baddbmm(read @ torch.cat(states), mixing, torch.cat(corrections))
    output = output.view(num_chunks, num_sequences, num_heads, CHUNK, value_width)
    output = output.permute(1, 0, 3, 2, 4).reshape(num_sequences, -1, num_heads, value_width)
    return output[:, :num_tokens], state.view(num_sequences, num_heads, key_width, value_width)
