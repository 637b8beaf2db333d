"""The delta rule inside chunks of 64 tokens, as matrix products, and its gradients.

Everything here works on N chunks at once (of any sequence, any head), each [64, .]. With d_t =
exp(g_t), d(j, i] the product of d over the tokens behind j up to i, and S the state that enters:

    A_kk[i, j] = beta_i sum_c k_ic k_jc d(j, i]_c        j < i
    A_qk[i, j] = K^(-1/2) sum_c q_ic k_jc d(j, i]_c      j <= i
    (I + A_kk) V~ = diag(beta) (V - (d(start, .] k) S)
    O  = K^(-1/2) (d(start, .] q) S + A_qk V~
    S <- diag(d(start, end]) S + (d(., end] k)^T V~

A_kk and A_qk come from tiles, every one a matrix product: a reader (beta k, or q) times the decay
since a reference, and a key times the decay up to it. Off the diagonal the reference lies between
the two halves of a block, so both factors are at most 1; blocks of 16, then of 32, meet this way,
and what is left at the end are the factors from the chunk's start and up to its end.

On the diagonal, inside 16 tokens, one factor grows. Its reference is the middle of the tile, so
that neither leaves exp(+-40) at a log-decay of -5 per token. Two things are exact there that a sum
of logarithms would not give:

- Decay is a running product, not exp of a running sum: the quotient of two is right to a few
  roundings even behind a deep decay. 16 tokens at -5 give exp(-80), a normal float32; this is where
  a log-decay below -5 would break.
- The reference is rounded to a power of two, so that it cancels without a rounding. No result
  depends on a later token, not even in its last bit, and a chunk computed before it is full (zeros
  behind) agrees with the full one.

Decays far below rounding are set to zero, so that products stay clear of subnormal numbers.

Source: Kimi Linear (arXiv 2510.26692) for the chunked form; `attend_backward` is derived from it,
with dG_t = q_t dq_t + k_t dk_t[reader] - k_t dk_t[key] in place of gradients of every factor.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import hardshrink, threshold

CHUNK = 64
"""Tokens per chunk."""
TILE = 16
"""Tokens per side of a diagonal tile."""
TILES = CHUNK // TILE
JOINED_BLOCKS = (2, 1)
"""Blocks per chunk, of two halves each, that are joined once the tiles are done."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """N chunks of the op's inputs. Rows behind the last token are zero."""

    q: Float[Tensor, "N C K"]
    k: Float[Tensor, "N C K"]
    v: Float[Tensor, "N C V"]
    g: Float[Tensor, "N C K"]
    beta: Float[Tensor, "N C 1"]


@dataclass(frozen=True, slots=True)
class Decays:
    """How much of each channel is left between two places of a chunk."""

    tile: Float[Tensor, "N tiles 16 K"]
    """Since the middle of the token's tile; above 1 before it."""
    since_border: Sequence[Float[Tensor, "N P J K"]]
    """For the second halves of P blocks: since they began. One entry for each of JOINED_BLOCKS."""
    until_border: Sequence[Float[Tensor, "N P J K"]]
    """For the first halves: until they ended."""
    since_start: Float[Tensor, "N C K"]
    """Since the chunk's start."""
    until_end: Float[Tensor, "N C K"]
    """Until the chunk's end."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """Readers (queries, or what erases), or keys, times the decay towards where they meet."""

    tile: Float[Tensor, "N tiles 16 K"]
    """On the diagonal: the middle of the tile."""
    halves: Sequence[Float[Tensor, "N P J K"]]
    """Of P blocks: the border between the halves. Readers are in the second one."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """What a chunk does to a state, independent of the state."""

    query: Float[Tensor, "N C K"]
    """q, times the decay since the chunk's start."""
    erase: Float[Tensor, "N C K"]
    """beta k, times the same."""
    write: Float[Tensor, "N C K"]
    """k, times the decay up to the chunk's end."""
    values: Float[Tensor, "N C V"]
    """beta v."""
    kept: Float[Tensor, "N K 1"]
    """Decay over the chunk."""
    mixing: Float[Tensor, "N C C"]
    """K^(1/2) A_qk."""
    inverse: Float[Tensor, "N C C"]
    """(I + A_kk)^(-1)."""
    decays: Decays
    queries: Scaled
    erasers: Scaled
    keys: Scaled


@dataclass(frozen=True, slots=True)
class Upstream:
    """Gradients of what `prepare` returned."""

    query: Float[Tensor, "N C K"]
    erase: Float[Tensor, "N C K"]
    write: Float[Tensor, "N C K"]
    values: Float[Tensor, "N C V"]
    log_kept: Float[Tensor, "N K"]
    """Of the log-decay over the whole chunk, through the state that leaves it."""
    mixing: Float[Tensor, "N C C"]
    """What lies above the diagonal is ignored, here and below."""
    coupling: Float[Tensor, "N C C"]
    """Of A_kk."""


def prepare(inputs: Inputs) -> Chunks:
    """Compute everything of a chunk that needs no state."""
    decays = _decays(inputs.g)
    erasers = inputs.k * inputs.beta
    scaled_queries = _scale_readers(inputs.q, decays)
    scaled_erasers = _scale_readers(erasers, decays)
    scaled_keys = _scale_keys(inputs.k, decays)
    square = len(inputs.k), CHUNK, CHUNK
    mixing = _score(scaled_queries, scaled_keys, inputs.k.new_zeros(square))
    _diagonal_blocks(mixing, TILES).tril_()
    coupling = _score(scaled_erasers, scaled_keys, inputs.k.new_empty(square))
    return Chunks(
        query=inputs.q * decays.since_start,
        erase=erasers * decays.since_start,
        write=inputs.k * decays.until_end,
        values=inputs.v * inputs.beta,
        kept=decays.since_start[:, -1].unsqueeze(-1),
        mixing=mixing,
        inverse=_invert(coupling),
        decays=decays,
        queries=scaled_queries,
        erasers=scaled_erasers,
        keys=scaled_keys,
    )


def prepare_backward(inputs: Inputs, chunks: Chunks, upstream: Upstream) -> Inputs:
    """Turn the gradients of what `prepare` returned into those of its inputs.

    The gradient of log-decay needs no factor's gradient: every score holds exp(G_i - G_j), so G
    receives (reader * its gradient) at i and -(key * its gradient) at j.
    """
    q, k, v, beta = inputs.q, inputs.k, inputs.v, inputs.beta
    _diagonal_blocks(upstream.mixing, TILES).tril_()
    _diagonal_blocks(upstream.coupling, TILES).tril_(-1)
    q_grad = _readers_grad(upstream.query, upstream.mixing, chunks)
    eraser_grad = _readers_grad(upstream.erase, upstream.coupling, chunks)
    key_grad = _keys_grad(upstream, chunks)

    beta_grad = (eraser_grad * k).sum(dim=-1, keepdim=True)
    beta_grad += (upstream.values * v).sum(dim=-1, keepdim=True)
    eraser_grad *= beta
    log_decay_grad = (eraser_grad - key_grad).mul_(k).addcmul_(q, q_grad)
    log_decay_grad[:, -1] += upstream.log_kept
    later = torch.ones(CHUNK, CHUNK, dtype=k.dtype, device=k.device).triu()
    return Inputs(
        q=q_grad,
        k=key_grad.add_(eraser_grad),
        v=upstream.values * beta,
        g=torch.bmm(later.expand(len(k), -1, -1), log_decay_grad),
        beta=beta_grad,
    )


def _decays(g: Float[Tensor, "N C K"]) -> Decays:
    """Multiply decays up: inside tiles token by token, then from tile to tile."""
    decay = g.exp()
    size = 1
    while size < TILE:
        first, second = decay.unflatten(1, (-1, 2, size)).unbind(dim=2)
        second *= first[:, :, -1:]
        size *= 2
    since = _blocks(decay, TILES)
    kept = since[:, :, -1:].clone()
    center = torch.exp2(-since[:, :, TILE // 2 - 1 : TILE // 2].log2().round())
    tile = since * center
    until = _drop(tile[:, :, -1:] / tile)
    since = _drop(since)

    since_border, until_border = [], []
    for num_blocks in JOINED_BLOCKS:
        kept_first, kept_second = _halves(kept, num_blocks)
        second = _halves(since, num_blocks)[1] * _from_start(kept_second)
        first = _halves(until, num_blocks)[0] * _to_end(kept_first)
        since_border.append(_drop(second).flatten(2, 3))
        until_border.append(_drop(first).flatten(2, 3))
    kept = kept.unsqueeze(1)
    return Decays(
        tile=tile,
        since_border=since_border,
        until_border=until_border,
        since_start=(since.unsqueeze(1) * _drop(_from_start(kept))).view_as(g),
        until_end=(until.unsqueeze(1) * _drop(_to_end(kept))).view_as(g),
    )


def _from_start(kept: Float[Tensor, "N P J 1 K"]) -> Tensor:
    """Multiply what each of J tiles keeps, up to but not with the tile itself."""
    kept = torch.cat([torch.ones_like(kept[:, :, :1]), kept[:, :, :-1]], dim=2)
    return kept.cumprod(dim=2)


def _to_end(kept: Float[Tensor, "N P J 1 K"]) -> Tensor:
    """Multiply what the tiles behind each one keep."""
    return _from_start(kept.flip(2)).flip(2)


def _drop(decay: Tensor) -> Tensor:
    """Set to zero, in place, what is far below rounding: 2^-47 in float32.

    A product of two factors is then never subnormal. On such numbers a CPU runs fifty times slower.
    """
    return threshold(decay, torch.finfo(decay.dtype).tiny ** 0.375, 0.0, inplace=True)


def _shrink(scores: Tensor) -> Tensor:
    """Do the same to numbers of either sign, below 2^-63: two of these are multiplied."""
    return hardshrink(scores, torch.finfo(scores.dtype).tiny ** 0.5)


def _scale_readers(readers: Float[Tensor, "N C K"], decays: Decays) -> Scaled:
    halves = [
        _halves(readers, num_blocks)[1] * since
        for num_blocks, since in zip(JOINED_BLOCKS, decays.since_border, strict=True)
    ]
    return Scaled(_blocks(readers, TILES) * decays.tile, halves)


def _scale_keys(k: Float[Tensor, "N C K"], decays: Decays) -> Scaled:
    halves = [
        _halves(k, num_blocks)[0] * until
        for num_blocks, until in zip(JOINED_BLOCKS, decays.until_border, strict=True)
    ]
    return Scaled(_blocks(k, TILES) / decays.tile, halves)


def _score(readers: Scaled, keys: Scaled, scores: Float[Tensor, "N C C"]) -> Tensor:
    """Write sum_c reader_ic k_jc d(j, i]_c where j <= i; nothing above the diagonal tiles."""
    _diagonal_blocks(scores, TILES).copy_(_shrink(_product(readers.tile, keys.tile.mT)))
    for num_blocks, later, earlier in zip(JOINED_BLOCKS, readers.halves, keys.halves, strict=True):
        _below(scores, num_blocks).copy_(_shrink(_product(later, earlier.mT)))
    return scores


def _readers_grad(
    read_grad: Float[Tensor, "N C K"], scores_grad: Float[Tensor, "N C C"], chunks: Chunks
) -> Float[Tensor, "N C K"]:
    """Gradient of unscaled readers, from what they read of the state and from their scores."""
    keys, decays = chunks.keys, chunks.decays
    grad = read_grad * decays.since_start
    pulled = _product(_diagonal_blocks(scores_grad, TILES), keys.tile)
    _blocks(grad, TILES).addcmul_(pulled, decays.tile)
    for num_blocks, half, since in zip(
        JOINED_BLOCKS, keys.halves, decays.since_border, strict=True
    ):
        pulled = _product(_below(scores_grad, num_blocks), half)
        _halves(grad, num_blocks)[1].addcmul_(pulled, since)
    return grad


def _keys_grad(upstream: Upstream, chunks: Chunks) -> Float[Tensor, "N C K"]:
    """Gradient of keys as they are written and met by both kinds of readers."""
    queries, erasers, decays = chunks.queries, chunks.erasers, chunks.decays
    grad = upstream.write * decays.until_end
    pulled = _product(_diagonal_blocks(upstream.mixing, TILES).mT, queries.tile)
    pulled += _product(_diagonal_blocks(upstream.coupling, TILES).mT, erasers.tile)
    _blocks(grad, TILES).addcdiv_(pulled, decays.tile)
    for i, num_blocks in enumerate(JOINED_BLOCKS):
        pulled = _product(_below(upstream.mixing, num_blocks).mT, queries.halves[i])
        pulled += _product(_below(upstream.coupling, num_blocks).mT, erasers.halves[i])
        _halves(grad, num_blocks)[0].addcmul_(pulled, decays.until_border[i])
    return grad


def _invert(coupling: Float[Tensor, "N C C"]) -> Float[Tensor, "N C C"]:
    """Invert I + A, reading A below the diagonal: tiles first, then blocks of 16 and 32 merge.

    With I + A = [[L1, 0], [B, L2]] the inverse is [[L1^-1, 0], [-L2^-1 B L1^-1, L2^-1]].
    """
    one = torch.eye(TILE, dtype=coupling.dtype, device=coupling.device)
    inverse = torch.zeros_like(coupling)
    _diagonal_blocks(inverse, TILES).copy_(
        torch.linalg.solve_triangular(
            _diagonal_blocks(coupling, TILES), one, upper=False, unitriangular=True
        )
    )
    for num_blocks in JOINED_BLOCKS:
        first, second = _diagonal_blocks(inverse, 2 * num_blocks).unflatten(1, (-1, 2)).unbind(2)
        merged = _shrink(_product(second, _below(coupling, num_blocks)))
        _below(inverse, num_blocks).copy_(-_shrink(_product(merged, first)))
    return inverse


def _blocks(rows: Float[Tensor, "N C X"], count: int) -> Float[Tensor, "N P J X"]:
    """View the rows of each chunk as blocks."""
    return rows.unflatten(1, (count, -1))


def _halves(rows: Float[Tensor, "N C *X"], num_blocks: int) -> tuple[Tensor, Tensor]:
    """View the first and second halves [N, P, J, ...] of blocks of rows, or of tiles."""
    first, second = rows.unflatten(1, (num_blocks, 2, -1)).unbind(dim=2)
    return first, second


def _diagonal_blocks(matrix: Float[Tensor, "N C C"], count: int) -> Float[Tensor, "N P J J"]:
    """View the blocks on the diagonal."""
    grid = matrix.unflatten(2, (count, -1)).unflatten(1, (count, -1))
    return grid.diagonal(dim1=1, dim2=3).movedim(-1, 1)


def _below(matrix: Float[Tensor, "N C C"], num_blocks: int) -> Float[Tensor, "N P J J"]:
    """View the quarter of each diagonal block where its second half meets its first."""
    size = matrix.shape[1] // (2 * num_blocks)
    return _diagonal_blocks(matrix, num_blocks)[:, :, size:, :size]


def _product(left: Float[Tensor, "N P R J"], right: Float[Tensor, "N P J C"]) -> Tensor:
    """Multiply P matrices of each of N chunks."""
    return torch.bmm(left.flatten(0, 1), right.flatten(0, 1)).unflatten(0, left.shape[:2])
