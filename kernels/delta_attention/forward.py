"""The chunked delta rule, forward: seven kernels, all but the sixth parallel over chunks.

With G the inclusive sum of the gates g inside a chunk of C = 64 tokens, and S the state before it:

    G       = cumulative sum of g                                              cumulate_gates
    M_ij    = sum_c k_ic k_jc exp(G_ic - G_jc)                  j < i           score_tiles
    A_ij    = K^(-1/2) sum_c q_ic k_jc exp(G_ic - G_jc)         j <= i          score_tiles
    X       = (I + diag(beta) M)^(-1)                              invert_tiles, merge_tiles
    W, U    = X diag(beta) (k * exp(G)),  X diag(beta) v                       prepare_chunks
    q~, k~  = K^(-1/2) q * exp(G),  k * exp(G_C - G)                           prepare_chunks
    V~      = U - W S                                                          carry_states
    S      <- diag(exp(G_C)) S + k~^T V~                                       carry_states
    O       = q~ S + A V~                                                      mix_outputs

`coupling` is M, `mixing` A, `inverse` X, `erase` W, `write` U, `reader` q~, `writer` k~,
`corrections` V~. Sources: model notes in `kernels.delta_attention`; the WY form of Yang et al.
(arXiv 2406.06484) with the decay per channel of Kimi Linear (arXiv 2510.26692).

Nothing that a row reads depends on a later token, not even through rounding: the first rows of a
chunk come out the same whether the rest of it is there or not. That is what replay decoding needs.
"""

# A kernel's arguments are what a launch passes by position, pointers and numbers of the device.
# ruff: noqa: ANN001, ANN201, PLR0917

from collections.abc import Sequence

import triton
import triton.language as tl

from kernels.aot import AotCase
from kernels.delta_attention.tiles import (
    CHUNK,
    FLOAT32,
    LOG2_E,
    MIDDLE,
    NEAR_FLOAT32,
    NEVER,
    TILE,
    TILES,
    Config,
    Kernel,
    chunk_bounds,
    load_matrix,
    load_row,
    load_tile,
    product,
    store_matrix,
    store_tile,
    token_rows,
)


@triton.jit
def cumulate_gates(g, cumulative, chunks, H: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """Sum the gates inside each chunk, and turn nats into bits."""
    bounds = chunk_bounds(chunks, tl.program_id(0))
    rows, valid = token_rows(bounds, 0, tl.program_id(1), H, CHUNK)
    first = tl.program_id(2) * BLOCK_K
    gates = load_tile(g, rows, valid, first, K, BLOCK_K).to(tl.float32)
    store_tile(cumulative, tl.cumsum(gates * LOG2_E, axis=0), rows, valid, first, K, BLOCK_K)


@triton.jit
def score_tiles(
    q,
    k,
    cumulative,
    mixing,
    coupling,
    chunks,
    H: tl.constexpr,
    K: tl.constexpr,
    DOT: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Score a tile of 16 rows against the tokens of its chunk, as one matrix product.

    exp(G_i - G_j) is split into exp(G_i - R) exp(R - G_j). R is the tile's first G less half of
    what a tile can decay by, 37.5 nats at gates of -5: both factors stay within 37.5 nats on the
    tile's own columns, and on earlier columns neither product nor factors grow. R depends on no
    token after the tile's first.
    """
    tile = tl.program_id(0) % TILES
    head = tl.program_id(1)
    bounds = chunk_bounds(chunks, tl.program_id(0) // TILES)
    origin, begin, end = bounds
    top = origin + tile * TILE
    if (top >= end) | (top + TILE <= begin):
        return
    top = tl.maximum(top, begin)
    rows, valid = token_rows(bounds, tile * TILE, head, H, TILE)
    columns, is_token = token_rows(bounds, 0, head, H, CHUNK)
    column = tl.arange(0, CHUNK)
    is_token &= column < (tile + 1) * TILE
    reads = tl.zeros([TILE, CHUNK], tl.float32)
    couples = tl.zeros([TILE, CHUNK], tl.float32)
    for first in range(0, K, BLOCK_K):
        reference = load_row(cumulative, top * H + head, first, K, BLOCK_K) - MIDDLE
        decay = load_tile(cumulative, rows, valid, first, K, BLOCK_K) - reference[None, :]
        grow = tl.exp2(tl.where(valid[:, None], decay, NEVER))
        decay = reference[None, :] - load_tile(cumulative, columns, is_token, first, K, BLOCK_K)
        shrink = tl.exp2(tl.where(is_token[:, None], decay, NEVER))
        keys = tl.trans(load_tile(k, columns, is_token, first, K, BLOCK_K) * shrink)
        reads += product(load_tile(q, rows, valid, first, K, BLOCK_K) * grow, keys, DOT)
        couples += product(load_tile(k, rows, valid, first, K, BLOCK_K) * grow, keys, DOT)
    row = tile * TILE + tl.arange(0, TILE)
    reads = tl.where(row[:, None] >= column[None, :], reads * K**-0.5, 0.0)
    couples = tl.where(row[:, None] > column[None, :], couples, 0.0)
    store_tile(mixing, reads, rows, valid, 0, CHUNK, CHUNK)
    store_tile(coupling, couples, rows, valid, 0, CHUNK, CHUNK)


@triton.jit
def invert_tiles(coupling, beta, tiles, chunks, H: tl.constexpr):
    """Invert the tiles on the diagonal of I + diag(beta) M, row by row."""
    bounds = chunk_bounds(chunks, tl.program_id(0))
    origin, begin, end = bounds
    tile = tl.arange(0, TILES)[:, None, None]
    i = tl.arange(0, TILE)[None, :, None]
    j = tl.arange(0, TILE)[None, None, :]
    token = origin + tile * TILE + i
    valid = (token >= begin) & (token < end)
    row = token * H + tl.program_id(1)
    system = tl.load(coupling + row * CHUNK + tile * TILE + j, valid, 0.0)
    system *= tl.load(beta + row, valid, 0.0).to(tl.float32)
    solved = tl.where((i == j) & (tile >= 0), 1.0, 0.0)
    for step in range(1, TILE):
        factors = tl.sum(tl.where(i == step, system, 0.0), axis=1)
        known = tl.sum(tl.expand_dims(factors, 2) * solved, axis=1)
        solved = tl.where(i == step, solved - tl.expand_dims(known, 1), solved)
    tl.store(tiles + row * TILE + j, solved, valid)


@triton.jit
def merge_tiles(coupling, beta, tiles, inverse, chunks, H: tl.constexpr, DOT: tl.constexpr):
    """Invert I + diag(beta) M, given the inverses of its tiles: blocks of 32, then all 64.

    With X the inverse of the blocks on the diagonal and L what lies between the two of a pair, the
    inverse with the pairs as blocks is X - X L X.
    """
    bounds = chunk_bounds(chunks, tl.program_id(0))
    rows, valid = token_rows(bounds, 0, tl.program_id(1), H, CHUNK)
    row = tl.arange(0, CHUNK)[:, None]
    column = tl.arange(0, CHUNK)[None, :]
    system = load_tile(coupling, rows, valid, 0, CHUNK, CHUNK)
    system *= tl.load(beta + rows, valid, 0.0).to(tl.float32)[:, None]
    is_diagonal = valid[:, None] & (row // TILE == column // TILE)
    solved = tl.load(tiles + rows[:, None] * TILE + column % TILE, is_diagonal, 0.0)
    PRECISION: tl.constexpr = FLOAT32 if tl.float32 == DOT else NEAR_FLOAT32
    for level in tl.static_range(2):  # pyright: ignore[reportGeneralTypeIssues]  of the compiler
        size = TILE * (level + 1)
        is_second = row // size % 2 == 1
        between = tl.where(is_second & (row // size == column // size + 1), system, 0.0)
        update = tl.dot(solved, between, input_precision=PRECISION)
        solved -= tl.dot(update, solved, input_precision=PRECISION)
    store_tile(inverse, solved, rows, valid, 0, CHUNK, CHUNK)


@triton.jit
def prepare_chunks(
    q,
    k,
    v,
    beta,
    cumulative,
    inverse,
    erase,
    write,
    reader,
    writer,
    chunks,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    DOT: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Compute what the passes over the state multiply it by: W, U, q~ and k~."""
    head = tl.program_id(1)
    bounds = chunk_bounds(chunks, tl.program_id(0))
    rows, valid = token_rows(bounds, 0, head, H, CHUNK)
    last = (bounds[2] - 1) * H + head
    strengths = tl.load(beta + rows, valid, 0.0).to(tl.float32)
    solve = load_tile(inverse, rows, valid, 0, CHUNK, CHUNK) * strengths[None, :]
    for first in range(0, K, BLOCK_K):
        decay = load_tile(cumulative, rows, valid, first, K, BLOCK_K)
        keys = load_tile(k, rows, valid, first, K, BLOCK_K)
        left = load_row(cumulative, last, first, K, BLOCK_K)[None, :] - decay
        since = tl.exp2(decay)
        until = tl.exp2(tl.where(valid[:, None], left, NEVER))
        queries = load_tile(q, rows, valid, first, K, BLOCK_K) * since * K**-0.5
        store_tile(erase, product(solve, keys * since, DOT), rows, valid, first, K, BLOCK_K)
        store_tile(reader, queries, rows, valid, first, K, BLOCK_K)
        store_tile(writer, keys * until, rows, valid, first, K, BLOCK_K)
    for first in range(0, V, BLOCK_V):
        values = load_tile(v, rows, valid, first, V, BLOCK_V)
        store_tile(write, product(solve, values, DOT), rows, valid, first, V, BLOCK_V)


@triton.jit
def carry_states(
    erase,
    write,
    writer,
    cumulative,
    initial_state,
    states,
    corrections,
    final_state,
    chunks,
    first_chunks,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    DOT: tl.constexpr,
    WHOLE_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Walk a sequence chunk by chunk, carrying a block of columns of its state."""
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    column = tl.program_id(2) * BLOCK_V
    place = sequence * H + head
    state = load_matrix(initial_state, place, 0, column, K, V, WHOLE_K, BLOCK_V)
    begin = tl.load(first_chunks + sequence)
    end = tl.load(first_chunks + sequence + 1)
    for chunk in range(begin, end):
        bounds = chunk_bounds(chunks, chunk)
        rows, valid = token_rows(bounds, 0, head, H, CHUNK)
        store_matrix(states, state, chunk * H + head, column, K, V, WHOLE_K, BLOCK_V)
        recalled = product(load_tile(erase, rows, valid, 0, K, WHOLE_K), state, DOT)
        correction = load_tile(write, rows, valid, column, V, BLOCK_V) - recalled
        store_tile(corrections, correction, rows, valid, column, V, BLOCK_V)
        kept = tl.exp2(load_row(cumulative, (bounds[2] - 1) * H + head, 0, K, WHOLE_K))
        keys = tl.trans(load_tile(writer, rows, valid, 0, K, WHOLE_K))
        state = state * kept[:, None] + product(keys, correction, DOT)
    store_matrix(final_state, state, place, column, K, V, WHOLE_K, BLOCK_V)


@triton.jit
def mix_outputs(
    reader,
    mixing,
    states,
    corrections,
    out,
    chunks,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    DOT: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Read the state before the chunk, and what the chunk has written since."""
    chunk = tl.program_id(0)
    head = tl.program_id(1)
    column = tl.program_id(2) * BLOCK_V
    bounds = chunk_bounds(chunks, chunk)
    rows, valid = token_rows(bounds, 0, head, H, CHUNK)
    scores = load_tile(mixing, rows, valid, 0, CHUNK, CHUNK)
    mixed = product(scores, load_tile(corrections, rows, valid, column, V, BLOCK_V), DOT)
    for first in range(0, K, BLOCK_K):
        queries = load_tile(reader, rows, valid, first, K, BLOCK_K)
        state = load_matrix(states, chunk * H + head, first, column, K, V, BLOCK_K, BLOCK_V)
        mixed += product(queries, state, DOT)
    store_tile(out, mixed, rows, valid, column, V, BLOCK_V)


CUMULATE_GATES = Kernel(
    function=cumulate_gates,
    configs=[Config(64, 4, 1), Config(32, 4, 1), Config(32, 2, 1)],
    split="K",
)
SCORE_TILES = Kernel(
    function=score_tiles,
    configs=[Config(64, 4, 2), Config(32, 4, 2), Config(64, 2, 2)],
)
INVERT_TILES = Kernel(
    function=invert_tiles,
    configs=[Config(64, 4, 1), Config(64, 2, 1), Config(64, 1, 1)],
)
MERGE_TILES = Kernel(
    function=merge_tiles,
    configs=[Config(64, 4, 1), Config(64, 8, 1)],
)
PREPARE_CHUNKS = Kernel(
    function=prepare_chunks,
    configs=[Config(64, 4, 2), Config(32, 4, 2), Config(64, 8, 2)],
)
CARRY_STATES = Kernel(
    function=carry_states,
    configs=[Config(32, 4, 2), Config(32, 4, 1), Config(64, 4, 2), Config(16, 4, 2)],
    float32=Config(16, 4, 2),
    split="V",
)
MIX_OUTPUTS = Kernel(
    function=mix_outputs,
    configs=[Config(64, 4, 2), Config(128, 8, 2), Config(32, 4, 3)],
    split="V",
)


def aot_cases() -> Sequence[AotCase]:
    """List every configuration of every forward kernel."""
    kernels = (
        CUMULATE_GATES,
        SCORE_TILES,
        INVERT_TILES,
        MERGE_TILES,
        PREPARE_CHUNKS,
        CARRY_STATES,
        MIX_OUTPUTS,
    )
    return [case for kernel in kernels for case in kernel.aot_cases()]
