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

Source: Kimi Linear (arXiv 2510.26692) for the chunked form; `attend_backward` is derived from it,
with dG_t = q_t dq_t + k_t dk_t[reader] - k_t dk_t[key] in place of gradients of every factor.
"""

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
READERS = 2
"""What reads the memory at each token: its query, and its key before it corrects."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """N chunks of the op's inputs. Rows behind the last token are zero."""

    q: Float[Tensor, "N C K"]
    k: Float[Tensor, "N C K"]
    v: Float[Tensor, "N C V"]
    g: Float[Tensor, "N C K"]
    beta: Float[Tensor, "N C 1"]


@dataclass(frozen=True, slots=True)
class Join:
    """Two halves of each of P blocks, one behind the other, as they meet."""

    since: Float[Tensor, "N P 1 J K"]
    """Decay since the second half began, for its tokens."""
    readers: Float[Tensor, "N P R K"]
    """Of the second half, tile by tile, times `since`."""
    until: Float[Tensor, "N P J K"]
    """Decay until the first half ended, for its tokens."""
    keys: Float[Tensor, "N P J K"]
    """Of the first half, times `until`."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """What a chunk does to a state, independent of the state."""

    query: Float[Tensor, "N C K"]
    """K^(-1/2) q, times the decay since the chunk's start."""
    erase: Float[Tensor, "N C K"]
    """beta k, times the same."""
    write: Float[Tensor, "N C K"]
    """k, times the decay up to the chunk's end."""
    values: Float[Tensor, "N C V"]
    """beta v."""
    kept: Float[Tensor, "N K 1"]
    """Decay over the chunk."""
    mixing: Float[Tensor, "N C C"]
    """A_qk."""
    inverse: Float[Tensor, "N C C"]
    """(I + A_kk)^(-1)."""
    since: Float[Tensor, "N C K"]
    """Decay since the chunk's start."""
    until: Float[Tensor, "N C K"]
    """Decay up to the chunk's end."""
    tile_decay: Float[Tensor, "N tiles tile K"]
    """Decay since the tile's reference, its middle."""
    tile_readers: Float[Tensor, "N tiles R K"]
    """Readers times `tile_decay`."""
    tile_keys: Float[Tensor, "N tiles tile K"]
    """Keys divided by it."""
    joins: tuple[Join, ...]
    """Of blocks of 16, then of 32."""


def prepare(inputs: Inputs) -> Chunks:
    """Compute everything of a chunk that needs no state."""
    q, k, beta = inputs.q, inputs.k, inputs.beta
    num_chunks, _, key_width = k.shape
    tiled = num_chunks, TILES, TILE, key_width
    since = _running_decay(inputs.g).view(tiled)
    center = torch.exp2(-since[:, :, TILE // 2 - 1 : TILE // 2].log2().round())
    tile_decay = since * center
    readers = torch.stack([(q * key_width**-0.5).view(tiled), (k * beta).view(tiled)], dim=2)
    tile_readers = (readers * tile_decay.unsqueeze(2)).flatten(2, 3)
    tile_keys = k.view(tiled) / tile_decay

    # Rows of `scores`: tile by tile, the queries of a tile, then its erasing keys.
    scores = k.new_zeros(num_chunks, READERS * CHUNK, CHUNK)
    diagonal = _product(tile_readers, tile_keys.mT)
    diagonal.unflatten(2, (READERS, TILE))[:, :, 0].tril_()
    _diagonal_blocks(scores, TILES).copy_(diagonal)

    since, until = _drop(since), _drop(tile_decay[:, :, -1:] / tile_decay)
    joins = []
    for num_blocks in (2, 1):
        join = _meet(readers, k, since, until, num_blocks)
        block = _product(join.readers, join.keys.mT)
        rows, columns = block.shape[2:]
        _diagonal_blocks(scores, num_blocks)[:, :, rows:, :columns] = block
        joins.append(join)
        since, until = _grow(since, until, num_blocks)

    mixing, coupling = _by_reader(scores.view(num_chunks, TILES, READERS, TILE, CHUNK))
    query, erase = _by_reader(readers * since.view(tiled).unsqueeze(2))
    since, until = since.view_as(k), until.view_as(k)
    return Chunks(
        query=query,
        erase=erase,
        write=k * until,
        values=inputs.v * beta,
        kept=since[:, -1].unsqueeze(-1),
        mixing=mixing,
        inverse=_invert(coupling),
        since=since,
        until=until,
        tile_decay=tile_decay,
        tile_readers=tile_readers,
        tile_keys=tile_keys,
        joins=tuple(joins),
    )


def prepare_backward(inputs: Inputs, chunks: Chunks, upstream: "Upstream") -> Inputs:
    """Turn the gradients of what `prepare` returned into those of its inputs.

    The gradient of log-decay needs no factor's gradient: every score holds exp(G_i - G_j), so G
    receives (reader * its gradient) at i and -(key * its gradient) at j.
    """
    q, k, v, beta = inputs.q, inputs.k, inputs.v, inputs.beta
    num_chunks, _, key_width = k.shape
    tiled = num_chunks, TILES, TILE, key_width
    read_grad = upstream.read.view(num_chunks, TILES, READERS, TILE, key_width)
    read_grad *= chunks.since.view(tiled).unsqueeze(2)
    key_grad = upstream.write * chunks.until
    for num_blocks, join in zip((2, 1), chunks.joins, strict=True):
        rows, columns = join.readers.shape[2], join.keys.shape[2]
        block = _diagonal_blocks(upstream.scores, num_blocks)[:, :, rows:, :columns]
        second = read_grad.view(num_chunks, num_blocks, 2, -1, READERS, TILE, key_width)[:, :, 1]
        second.addcmul_(_product(block, join.keys).view_as(second), join.since)
        first = _halves(key_grad, num_blocks)[0]
        first.addcmul_(_product(block.mT, join.readers), join.until)

    diagonal = _diagonal_blocks(upstream.scores, TILES).clone()
    by_reader = diagonal.unflatten(2, (READERS, TILE))
    by_reader[:, :, 0].tril_()
    by_reader[:, :, 1].tril_(-1)
    read_grad.addcmul_(
        _product(diagonal, chunks.tile_keys).view_as(read_grad), chunks.tile_decay.unsqueeze(2)
    )
    key_grad.view(tiled).addcdiv_(_product(diagonal.mT, chunks.tile_readers), chunks.tile_decay)

    q_grad, erase_grad = _by_reader(read_grad)
    q_grad *= key_width**-0.5
    beta_grad = (erase_grad * k).sum(dim=-1, keepdim=True)
    beta_grad += (upstream.values * v).sum(dim=-1, keepdim=True)
    erase_grad *= beta
    log_decay_grad = (q * q_grad).addcmul_(k, erase_grad - key_grad)
    log_decay_grad[:, -1] += upstream.log_kept
    later = torch.ones(CHUNK, CHUNK, dtype=k.dtype, device=k.device).triu()
    return Inputs(
        q=q_grad,
        k=erase_grad.add_(key_grad),
        v=upstream.values * beta,
        g=torch.bmm(later.expand(num_chunks, -1, -1), log_decay_grad),
        beta=beta_grad,
    )


@dataclass(frozen=True, slots=True)
class Upstream:
    """Gradients of what `prepare` returned. `prepare_backward` works in place on the first."""

    read: Float[Tensor, "N 2*C K"]
    """Of `query` and `erase`, in the order of the scores' rows."""
    write: Float[Tensor, "N C K"]
    """Of `write`."""
    scores: Float[Tensor, "N 2*C C"]
    """Of A_qk and A_kk; what lies above their diagonal is ignored."""
    values: Float[Tensor, "N C V"]
    """Of `values`."""
    log_kept: Float[Tensor, "N K"]
    """Of the log-decay over the whole chunk, through the state that leaves it."""


def _running_decay(g: Float[Tensor, "N C K"]) -> Float[Tensor, "N C K"]:
    """exp(g), multiplied up from the start of each tile, in log2(TILE) steps."""
    decay = g.exp()
    size = 1
    while size < TILE:
        first, second = _halves(decay, CHUNK // (2 * size))
        second *= first[:, :, -1:]
        size *= 2
    return decay


def _meet(
    readers: Float[Tensor, "N tiles readers tile K"],
    k: Float[Tensor, "N C K"],
    since: Tensor,
    until: Tensor,
    num_blocks: int,
) -> Join:
    """Scale the two halves of each block towards the border between them."""
    num_chunks, _, _, tile, key_width = readers.shape
    split = num_chunks, num_blocks, 2, -1
    later = readers.view(*split, READERS, tile, key_width)[:, :, 1]
    since = since.view(*split, 1, tile, key_width)[:, :, 1]
    until = _halves(until, num_blocks)[0]
    return Join(
        since=since,
        readers=(later * since).flatten(2, 4),
        until=until,
        keys=_halves(k, num_blocks)[0] * until,
    )


def _grow(since: Tensor, until: Tensor, num_blocks: int) -> tuple[Tensor, Tensor]:
    """Extend both decays from halves of blocks to whole blocks."""
    since_first, since_second = _halves(since, num_blocks)
    until_first, until_second = _halves(until, num_blocks)
    kept_first, kept_second = since_first[:, :, -1:], since_second[:, :, -1:]
    since = torch.stack([since_first, since_second * kept_first], dim=2)
    until = torch.stack([until_first * kept_second, until_second], dim=2)
    return _drop(since), _drop(until)


def _drop(decay: Tensor) -> Tensor:
    """Set to zero what is far below rounding: 2^-47 in float32.

    A product of two factors then never is a subnormal number, on which a CPU runs fifty times
    slower.
    """
    return threshold(decay, torch.finfo(decay.dtype).tiny ** 0.375, 0.0, inplace=True)


def _halves(rows: Tensor, num_blocks: int) -> tuple[Tensor, Tensor]:
    """Split the rows of each chunk into blocks and return views of their halves [N, P, ., K]."""
    first, second = rows.view(len(rows), num_blocks, 2, -1, rows.shape[-1]).unbind(dim=2)
    return first, second


def _diagonal_blocks(matrix: Float[Tensor, "N R C"], count: int) -> Float[Tensor, "N P R2 C2"]:
    """View the blocks on the diagonal of a grid of `count` by `count`."""
    grid = matrix.unflatten(2, (count, -1)).unflatten(1, (count, -1))
    return grid.diagonal(dim1=1, dim2=3).movedim(-1, 1)


def _by_reader(rows: Float[Tensor, "N tiles readers tile X"]) -> tuple[Tensor, Tensor]:
    """Part queries from erasing keys: twice [N, C, X]."""
    query, erase = (part.flatten(1, 2) for part in rows.unbind(dim=2))
    return query, erase


def _product(left: Float[Tensor, "N P R J"], right: Float[Tensor, "N P J C"]) -> Tensor:
    """Multiply P matrices of each of N chunks."""
    return torch.bmm(left.flatten(0, 1), right.flatten(0, 1)).unflatten(0, left.shape[:2])


def _invert(coupling: Float[Tensor, "N C C"]) -> Float[Tensor, "N C C"]:
    """Invert I + A, reading A below the diagonal: tiles first, then blocks of 16 and 32 merge.

    With (I + A) = [[L1, 0], [B, L2]] the inverse is [[L1^-1, 0], [-L2^-1 B L1^-1, L2^-1]].
    """
    one = torch.eye(TILE, dtype=coupling.dtype, device=coupling.device)
    inverse = torch.zeros_like(coupling)
    _diagonal_blocks(inverse, TILES).copy_(
        torch.linalg.solve_triangular(
            _diagonal_blocks(coupling, TILES), one, upper=False, unitriangular=True
        )
    )
    for num_blocks in (2, 1):
        size = CHUNK // (2 * num_blocks)
        first, second = slice(0, size), slice(size, None)
        blocks = _diagonal_blocks(inverse, num_blocks)
        below = _diagonal_blocks(coupling, num_blocks)[:, :, second, first]
        merged = _product(_product(blocks[:, :, second, second], below), blocks[:, :, first, first])
        blocks[:, :, second, first] = -hardshrink(merged, torch.finfo(merged.dtype).tiny ** 0.75)
    return inverse
