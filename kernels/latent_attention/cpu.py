"""Paged latent attention as compiled loops, float32.

For one query and head the loop goes tile by tile of `TILE` latents c_j from position 0, with a
running maximum m, sum of weights w and weighted sum a:

    s_j = q . c_j;   m' = max(m, max_j s_j)
    a  <- exp(m - m') a + sum_j exp(s_j - m') c_j;   w likewise

Every sum has one order, so a row's bits do not depend on the rows beside it. Rows run in groups of
`GROUP`, tokens in blocks of `BLOCK`, so that one read of a tile serves many. The inner loops run
over the keys of a tile or the channels of a value, which lie side by side in a page: they become
vector instructions.

The learner runs the same loop over whole sequences, for the engine's bits. Its backward is that of
PyTorch's fused attention, which wants the output and l = m + log w of each row:

    p_j = exp(s_j - l),   ds_j = p_j (do . c_j - do . o)
    dq = scale sum_j ds_j c_j,   dc_j = sum over rows of p_j do + scale ds_j q
"""

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.compiled import compiled
from kernels.latent_attention.reference import TILE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernels.latent_attention import PagedBatch

GROUP = 4
"""Rows, each a query of one head, that a pass over a tile serves."""
BLOCK = 16
"""Tokens that share the reading of their sequence."""
LOG2_E = np.float32(math.log2(math.e))
LEAST_EXPONENT = np.float32(-126.0)
"""Power of two below which a weight is zero: float32 has no normal number there."""
LOWEST, HALF, ONE, ZERO = (np.float32(x) for x in (-np.inf, 0.5, 1.0, 0.0))
C1, C2, C3, C4, C5, C6 = (np.float32(math.log(2) ** n / math.factorial(n)) for n in range(1, 7))
"""Taylor coefficients of 2^x, which for |x| <= 1/2 end within 1e-7."""


def paged_latent_attention(
    q: Float[Tensor, "T H R"],
    latent: Float[Tensor, "T R"],
    pages: Float[Tensor, "N X"],
    batch: "PagedBatch",
    scale: float,
) -> Float[Tensor, "T H R"]:
    """See `kernels.latent_attention`."""
    table = batch.page_table.numpy().astype(np.int64)
    bounds = batch.cu_seqlens.numpy().astype(np.int64)
    past = batch.lengths.numpy() - (bounds[1:] - bounds[:-1])
    output, _ = _run(q, latent, pages, table, (bounds, past), scale)
    return output


class PackedAttention(torch.autograd.Function):
    """See `kernels.latent_attention.packed_latent_attention`."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        q: Tensor,
        latent: Tensor,
        bounds: "Sequence[int]",
        scale: float,
    ) -> Tensor:
        """Lay the sequences out in pages of one tile, and run the engine's loop."""
        counts = np.array([-(-(b - a) // TILE) for a, b in itertools.pairwise(bounds)])
        first = counts.cumsum() - counts
        table = first[:, None] + np.arange(counts.max())  # behind its last, another sequence's
        pages = torch.empty(int(counts.sum()), 2 * latent.shape[1] * TILE)
        spans = np.array(bounds), np.zeros(len(counts), np.int64)
        output, log_totals = _run(q, latent, pages, table, spans, scale)
        ctx.save_for_backward(q, latent, output, log_totals)
        ctx.bounds, ctx.scale = bounds, scale
        return output

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  the decorator hides ctx
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        *grads: Tensor,
    ) -> tuple[Tensor, Tensor, None, None]:
        """Differentiate sequence by sequence: the latent is key and value of every head."""
        q, latent, output, log_totals = ctx.saved_tensors
        q_grad, latent_grad = torch.empty_like(q), torch.empty_like(latent)
        for start, stop in itertools.pairwise(ctx.bounds):
            rows = slice(start, stop)
            keys = latent[rows].expand(1, q.shape[1], -1, -1)
            pulled, key_grad, value_grad = (
                # What `scaled_dot_product_attention` runs; there is no public way to give it l.
                torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                    _by_head(grads[0][rows]),
                    _by_head(q[rows]),
                    keys,
                    keys,
                    _by_head(output[rows]),
                    _by_head(log_totals[rows]),
                    dropout_p=0.0,
                    is_causal=True,
                    scale=ctx.scale,
                )
            )
            q_grad[rows] = pulled[0].transpose(0, 1)
            latent_grad[rows] = key_grad[0].sum(dim=0).add_(value_grad[0].sum(dim=0))
        return q_grad, latent_grad, None, None


def _by_head(rows: Float[Tensor, "T H *R"]) -> Float[Tensor, "1 H T *R"]:
    """View a sequence as a batch of one, heads outside."""
    return rows.transpose(0, 1).unsqueeze(0)


def _run(
    q: Float[Tensor, "T H R"],
    latent: Float[Tensor, "T R"],
    pages: Float[Tensor, "N X"],
    table: np.ndarray,
    spans: tuple[np.ndarray, np.ndarray],
    scale: float,
) -> tuple[Float[Tensor, "T H R"], Float[Tensor, "T H"]]:
    """Write latents and attend.

    Args:
        q: Queries of the new tokens.
        latent: Latents of the new tokens.
        pages: Of all sequences.
        table: Pages of each sequence [B, M].
        spans: Bounds of the sequences' new tokens [B + 1], and the tokens before them [B], int64.
        scale: Multiplies the scores.

    Returns:
        Outputs, and l = m + log w of each row.
    """
    storage = torch.empty(0, dtype=pages.dtype).set_(pages.untyped_storage()).numpy()
    page_starts = table * int(pages.stride(0)) + int(pages.storage_offset())
    page_tokens = pages.shape[1] // (2 * latent.shape[1])
    output = torch.empty(q.shape, dtype=q.dtype)
    log_totals = torch.empty(q.shape[:2], dtype=q.dtype)
    _write(latent.contiguous().numpy(), storage, page_starts, page_tokens, *spans)
    _attend(
        q.contiguous().numpy(),
        np.float32(scale),
        storage,
        page_starts,
        page_tokens,
        *spans,
        (output.numpy(), log_totals.numpy()),
    )
    return output, log_totals


@compiled
def _write(
    latent: np.ndarray,
    storage: np.ndarray,
    page_starts: np.ndarray,
    page_tokens: int,
    bounds: np.ndarray,
    past: np.ndarray,
) -> None:
    """Put each new latent into its page, as a column of a key tile and as a row of values."""
    rank = latent.shape[1]
    for b in range(len(past)):
        for t in range(bounds[b], bounds[b + 1]):
            position = past[b] + t - bounds[b]
            token = position % page_tokens
            start = page_starts[b, position // page_tokens]
            key = start + token // TILE * TILE * rank + token % TILE
            value = start + (page_tokens + token) * rank
            for r in range(rank):
                storage[key + r * TILE] = latent[t, r]
                storage[value + r] = latent[t, r]


@compiled
def _four(x: np.ndarray, i: int, j: int) -> tuple[np.float32, np.float32, np.float32, np.float32]:
    """Return four neighbours of a row."""
    return x[i, j], x[i, j + 1], x[i, j + 2], x[i, j + 3]


@compiled
def _score(queries: np.ndarray, row: int, keys: np.ndarray, scores: np.ndarray) -> None:
    """Multiply a group of queries, from `row` on, with the keys of a tile: four channels a pass."""
    rank = queries.shape[1]
    fours = rank - rank % 4
    for i in range(GROUP):
        for j in range(TILE):
            scores[i, j] = ZERO
    for r in range(0, fours, 4):
        a0, a1, a2, a3 = _four(queries, row, r)
        b0, b1, b2, b3 = _four(queries, row + 1, r)
        c0, c1, c2, c3 = _four(queries, row + 2, r)
        d0, d1, d2, d3 = _four(queries, row + 3, r)
        for j in range(TILE):
            k0, k1, k2, k3 = keys[r, j], keys[r + 1, j], keys[r + 2, j], keys[r + 3, j]
            scores[0, j] = scores[0, j] + a0 * k0 + a1 * k1 + a2 * k2 + a3 * k3
            scores[1, j] = scores[1, j] + b0 * k0 + b1 * k1 + b2 * k2 + b3 * k3
            scores[2, j] = scores[2, j] + c0 * k0 + c1 * k1 + c2 * k2 + c3 * k3
            scores[3, j] = scores[3, j] + d0 * k0 + d1 * k1 + d2 * k2 + d3 * k3
    for r in range(fours, rank):
        for i in range(GROUP):
            for j in range(TILE):
                scores[i, j] += queries[row + i, r] * keys[r, j]


@compiled
def _add_values(
    weights: np.ndarray, values: np.ndarray, seen: int, row: int, sums: np.ndarray
) -> None:
    """Add the weighted values of a tile's first `seen` tokens to a group: four tokens a pass."""
    rank = sums.shape[1]
    fours = seen - seen % 4
    for j in range(0, fours, 4):
        a0, a1, a2, a3 = _four(weights, 0, j)
        b0, b1, b2, b3 = _four(weights, 1, j)
        c0, c1, c2, c3 = _four(weights, 2, j)
        d0, d1, d2, d3 = _four(weights, 3, j)
        for r in range(rank):
            v0, v1, v2, v3 = values[j, r], values[j + 1, r], values[j + 2, r], values[j + 3, r]
            sums[row, r] = sums[row, r] + a0 * v0 + a1 * v1 + a2 * v2 + a3 * v3
            sums[row + 1, r] = sums[row + 1, r] + b0 * v0 + b1 * v1 + b2 * v2 + b3 * v3
            sums[row + 2, r] = sums[row + 2, r] + c0 * v0 + c1 * v1 + c2 * v2 + c3 * v3
            sums[row + 3, r] = sums[row + 3, r] + d0 * v0 + d1 * v1 + d2 * v2 + d3 * v3
    for j in range(fours, seen):
        for i in range(GROUP):
            for r in range(rank):
                sums[row + i, r] += weights[i, j] * values[j, r]


@compiled
def _raise(
    scores: np.ndarray,
    i: int,
    row: int,
    lanes: np.ndarray,
    highest: np.ndarray,
    totals: np.ndarray,
    sums: np.ndarray,
) -> None:
    """Raise a row's maximum to that of its scores, and make its sums relative to it."""
    for j in range(TILE // 2):
        lanes[j] = max(scores[i, j], scores[i, j + TILE // 2])
    for j in range(TILE // 4):
        lanes[j] = max(lanes[j], lanes[j + TILE // 4])
    new = highest[row]
    for j in range(TILE // 4):
        new = max(new, lanes[j])
    if new > highest[row]:
        kept = np.exp(highest[row] - new)  # 0 at the first tile
        highest[row] = new
        for j in range(TILE):
            totals[row, j] *= kept
        for r in range(sums.shape[1]):
            sums[row, r] *= kept


@compiled
def _weigh(
    scores: np.ndarray,
    i: int,
    row: int,
    highest: np.float32,
    exponents: np.ndarray,
    powers: np.ndarray,
    totals: np.ndarray,
) -> None:
    """Turn scores into exp(score - highest), lane by lane, and add them to the lanes' totals.

    2^x is 2^n times a polynomial in x - n, n the nearest integer. `exponents` gets the bits of 2^n;
    `powers` is the same memory, read as float32.
    """
    for j in range(TILE):
        x = max((scores[i, j] - highest) * LOG2_E, LEAST_EXPONENT)
        n = np.floor(x + HALF)
        exponents[j] = (np.int32(n) + np.int32(127)) << np.int32(23)
        x -= n
        polynomial = ((((C6 * x + C5) * x + C4) * x + C3) * x + C2) * x + C1
        scores[i, j] = polynomial * x + ONE if n > LEAST_EXPONENT else ZERO
    for j in range(TILE):
        scores[i, j] *= powers[j]
        totals[row, j] += scores[i, j]


@compiled
def _begin(
    q: np.ndarray, start: int, stop: int, scale: np.float32, state: tuple[np.ndarray, ...]
) -> None:
    """Take the queries of the tokens `start` to `stop`; nothing is summed up yet."""
    queries, highest, totals, sums = state
    _, num_heads, rank = q.shape
    rows_per_token = len(queries) // BLOCK
    for t in range(start, stop):
        for h in range(num_heads):
            for r in range(rank):
                queries[(t - start) * rows_per_token + h, r] = q[t, h, r] * scale
    highest[:] = LOWEST
    totals[:] = ZERO
    sums[:] = ZERO


@compiled
def _meet(
    keys: np.ndarray,
    values: np.ndarray,
    seen: int,
    row: int,
    state: tuple[np.ndarray, ...],
    scratch: tuple[np.ndarray, ...],
) -> None:
    """Add what a group of rows, from `row` on, reads from the first `seen` tokens of a tile."""
    queries, highest, totals, sums = state
    scores, lanes, exponents, powers = scratch
    _score(queries, row, keys, scores)
    for i in range(GROUP):
        for j in range(seen, TILE):
            scores[i, j] = LOWEST
        _raise(scores, i, row + i, lanes, highest, totals, sums)
        _weigh(scores, i, row + i, highest[row + i], exponents, powers, totals)
    _add_values(scores, values, seen, row, sums)


@compiled
def _finish(
    state: tuple[np.ndarray, ...], start: int, stop: int, results: tuple[np.ndarray, np.ndarray]
) -> None:
    """Divide the weighted sums of a block by the sums of its weights; keep the latter's logs."""
    queries, highest, totals, sums = state
    output, log_totals = results
    _, num_heads, rank = output.shape
    rows_per_token = len(queries) // BLOCK
    for t in range(start, stop):
        for h in range(num_heads):
            row = (t - start) * rows_per_token + h
            total = ZERO
            for j in range(TILE):
                total += totals[row, j]
            for r in range(rank):
                output[t, h, r] = sums[row, r] / total
            log_totals[t, h] = highest[row] + np.log(total)


@compiled
def _attend(
    q: np.ndarray,
    scale: np.float32,
    storage: np.ndarray,
    page_starts: np.ndarray,
    page_tokens: int,
    bounds: np.ndarray,
    past: np.ndarray,
    results: tuple[np.ndarray, np.ndarray],
) -> None:
    """Attend from every new token, block by block; fill outputs and logarithms of totals."""
    _, num_heads, rank = q.shape
    rows_per_token = -(-num_heads // GROUP) * GROUP
    rows = BLOCK * rows_per_token
    state = (
        np.zeros((rows, rank), np.float32),
        np.empty(rows, np.float32),
        np.empty((rows, TILE), np.float32),
        np.empty((rows, rank), np.float32),
    )
    exponents = np.empty(TILE, np.int32)
    scratch = (
        np.empty((GROUP, TILE), np.float32),
        np.empty(TILE // 2, np.float32),
        exponents,
        exponents.view(np.float32),
    )
    for b in range(len(past)):
        for start in range(bounds[b], bounds[b + 1], BLOCK):
            stop = min(start + BLOCK, bounds[b + 1])
            _begin(q, start, stop, scale, state)
            first = past[b] + start - bounds[b]
            last = first + stop - start - 1
            for position in range(0, last + 1, TILE):
                begin = page_starts[b, position // page_tokens] + position % page_tokens * rank
                keys = storage[begin : begin + TILE * rank].reshape(rank, TILE)
                begin += page_tokens * rank
                values = storage[begin : begin + TILE * rank].reshape(TILE, rank)
                for token in range(max(first, position), last + 1):
                    seen = min(TILE, token + 1 - position)
                    top = (token - first) * rows_per_token
                    for row in range(top, top + rows_per_token, GROUP):
                        _meet(keys, values, seen, row, state, scratch)
            _finish(state, start, stop, results)
