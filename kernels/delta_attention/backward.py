"""The chunked delta rule, backward: six kernels, all but the second parallel over chunks.

Given dO and the gradient dS' of the state after a chunk, and with the names of `forward`:

    dV~     = A^T dO + k~ dS'                          pull_corrections, carry_state_grads
    dS      = diag(exp(G_C)) dS' + q~^T dO - W^T dV~                     carry_state_grads
    Y       = X^T dV~                                                        solve_grads
    dv      = diag(beta) Y                                                   solve_grads
    P       = K^(-1/2) tril(dO V~^T)                      j <= i             solve_grads
    B       = -diag(beta) Y V~^T                          j < i              solve_grads
    dq      = K^(-1/2) exp(G) * (dO S^T)                                     state_grads
    dk      = -beta exp(G) * (Y S^T)  +  exp(G_C - G) * (V~ dS'^T)           state_grads
    dq_i   += sum_j P_ij k_j exp(G_i - G_j)                                  score_grads
    dk_i   += sum_j B_ij k_j exp(G_i - G_j)                                  score_grads
    dk_j   += sum_i (P_ij q_i + B_ij k_i) exp(G_i - G_j)                     score_grads

V~ solves (I + diag(beta) M) V~ = diag(beta) R with R = v - (exp(G) * k) S, and Y is what reaches
diag(beta) R. So dbeta_i = Y_i . (R_i - sum_j M_ij V~_j), from the parts that solve_grads and
state_grads have at hand. No gradient of W, U or X is ever formed.

The gate needs no gradient of any decay. Every term holds exp(G_i - G_j), a row i that reads and a
column j that wrote, hence, with dk split into what its token reads ("erases") and writes,

    dG_i    = q_i dq_i + k_i dk_i[erase] - k_i dk_i[write]
    dG_C   += rowsum(dS' * S')     on the chunk's last token
    dg_t    = sum of dG_i over i >= t in the chunk                      sum_gate_grads

S', the state after the chunk, is taken apart: exp(G_C) rowsum(dS' * S) from the state before it,
and from its tokens the sum of k * dk[write], of which only the part through dS' counts.
"""

# A kernel's arguments are what a launch passes by position, pointers and numbers of the device.
# ruff: noqa: ANN001, ANN201, PLR0917

from collections.abc import Sequence

import triton
import triton.language as tl

from kernels.aot import AotCase
from kernels.delta_attention.tiles import (
    CHUNK,
    MIDDLE,
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
def pull_corrections(
    mixing,
    out_grad,
    correction_grads,
    chunks,
    H: tl.constexpr,
    V: tl.constexpr,
    DOT: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Send dO back to what the tokens of its chunk wrote: A^T dO."""
    bounds = chunk_bounds(chunks, tl.program_id(0))
    rows, valid = token_rows(bounds, 0, tl.program_id(1), H, CHUNK)
    column = tl.program_id(2) * BLOCK_V
    scores = tl.trans(load_tile(mixing, rows, valid, 0, CHUNK, CHUNK))
    pulled = product(scores, load_tile(out_grad, rows, valid, column, V, BLOCK_V), DOT)
    store_tile(correction_grads, pulled, rows, valid, column, V, BLOCK_V)


@triton.jit
def carry_state_grads(
    erase,
    reader,
    writer,
    cumulative,
    out_grad,
    final_grad,
    correction_grads,
    state_grads,
    initial_grad,
    chunks,
    first_chunks,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    DOT: tl.constexpr,
    WHOLE_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Walk a sequence from its last chunk, carrying a block of columns of its state's gradient.

    Adds to `correction_grads`, and keeps the gradient of the state after each chunk.
    """
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    column = tl.program_id(2) * BLOCK_V
    place = sequence * H + head
    grad = load_matrix(final_grad, place, 0, column, K, V, WHOLE_K, BLOCK_V)
    begin = tl.load(first_chunks + sequence)
    end = tl.load(first_chunks + sequence + 1)
    for step in range(end - begin):
        chunk = end - 1 - step
        bounds = chunk_bounds(chunks, chunk)
        rows, valid = token_rows(bounds, 0, head, H, CHUNK)
        store_matrix(state_grads, grad, chunk * H + head, column, K, V, WHOLE_K, BLOCK_V)
        pulled = load_tile(correction_grads, rows, valid, column, V, BLOCK_V)
        pulled += product(load_tile(writer, rows, valid, 0, K, WHOLE_K), grad, DOT)
        store_tile(correction_grads, pulled, rows, valid, column, V, BLOCK_V)
        kept = tl.exp2(load_row(cumulative, (bounds[2] - 1) * H + head, 0, K, WHOLE_K))
        queries = tl.trans(load_tile(reader, rows, valid, 0, K, WHOLE_K))
        keys = tl.trans(load_tile(erase, rows, valid, 0, K, WHOLE_K))
        upstream = load_tile(out_grad, rows, valid, column, V, BLOCK_V)
        grad = grad * kept[:, None] + product(queries, upstream, DOT)
        grad -= product(keys, pulled, DOT)
    store_matrix(initial_grad, grad, place, column, K, V, WHOLE_K, BLOCK_V)


@triton.jit
def solve_grads(
    v,
    beta,
    coupling,
    inverse,
    corrections,
    correction_grads,
    out_grad,
    solved,
    v_grad,
    beta_part,
    mixing_grad,
    coupling_grad,
    chunks,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    DOT: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Solve the transposed system for Y, and take from it what needs no key and no state."""
    bounds = chunk_bounds(chunks, tl.program_id(0))
    rows, valid = token_rows(bounds, 0, tl.program_id(1), H, CHUNK)
    strengths = tl.load(beta + rows, valid, 0.0).to(tl.float32)
    solve = tl.trans(load_tile(inverse, rows, valid, 0, CHUNK, CHUNK))
    reads = tl.zeros([CHUNK, CHUNK], tl.float32)
    erases = tl.zeros([CHUNK, CHUNK], tl.float32)
    strength_grad = tl.zeros([CHUNK], tl.float32)
    for first in range(0, V, BLOCK_V):
        pulled = load_tile(correction_grads, rows, valid, first, V, BLOCK_V)
        y = product(solve, pulled, DOT)
        strength_grad += tl.sum(y * load_tile(v, rows, valid, first, V, BLOCK_V), axis=1)
        written = tl.trans(load_tile(corrections, rows, valid, first, V, BLOCK_V))
        reads += product(load_tile(out_grad, rows, valid, first, V, BLOCK_V), written, DOT)
        erases += product(y, written, DOT)
        store_tile(solved, y, rows, valid, first, V, BLOCK_V)
        store_tile(v_grad, y * strengths[:, None], rows, valid, first, V, BLOCK_V)
    coupled = load_tile(coupling, rows, valid, 0, CHUNK, CHUNK)
    tl.store(beta_part + rows, strength_grad - tl.sum(coupled * erases, axis=1), valid)
    row = tl.arange(0, CHUNK)[:, None]
    column = tl.arange(0, CHUNK)[None, :]
    reads = tl.where(row >= column, reads * K**-0.5, 0.0)
    erases = tl.where(row > column, -erases * strengths[:, None], 0.0)
    store_tile(mixing_grad, reads, rows, valid, 0, CHUNK, CHUNK)
    store_tile(coupling_grad, erases, rows, valid, 0, CHUNK, CHUNK)


@triton.jit
def state_grads(
    q,
    k,
    beta,
    cumulative,
    states,
    after_grads,
    corrections,
    solved,
    out_grad,
    beta_part,
    q_part,
    k_part,
    gate_part,
    beta_grad,
    chunks,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    DOT: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Take the gradients that pass through the states before and after the chunk."""
    chunk = tl.program_id(0)
    head = tl.program_id(1)
    place = chunk * H + head
    bounds = chunk_bounds(chunks, chunk)
    rows, valid = token_rows(bounds, 0, head, H, CHUNK)
    last = (bounds[2] - 1) * H + head
    strengths = tl.load(beta + rows, valid, 0.0).to(tl.float32)
    strength_grad = tl.load(beta_part + rows, valid, 0.0)
    for first in range(0, K, BLOCK_K):
        reads = tl.zeros([CHUNK, BLOCK_K], tl.float32)
        erases = tl.zeros([CHUNK, BLOCK_K], tl.float32)
        writes = tl.zeros([CHUNK, BLOCK_K], tl.float32)
        overlap = tl.zeros([BLOCK_K], tl.float32)
        for column in range(0, V, BLOCK_V):
            before = load_matrix(states, place, first, column, K, V, BLOCK_K, BLOCK_V)
            after = load_matrix(after_grads, place, first, column, K, V, BLOCK_K, BLOCK_V)
            overlap += tl.sum(before.to(tl.float32) * after.to(tl.float32), axis=1)
            upstream = load_tile(out_grad, rows, valid, column, V, BLOCK_V)
            y = load_tile(solved, rows, valid, column, V, BLOCK_V)
            written = load_tile(corrections, rows, valid, column, V, BLOCK_V)
            reads += product(upstream, tl.trans(before), DOT)
            erases += product(y, tl.trans(before), DOT)
            writes += product(written, tl.trans(after), DOT)
        decay = load_tile(cumulative, rows, valid, first, K, BLOCK_K)
        end = load_row(cumulative, last, first, K, BLOCK_K)
        queries = load_tile(q, rows, valid, first, K, BLOCK_K).to(tl.float32)
        keys = load_tile(k, rows, valid, first, K, BLOCK_K).to(tl.float32)
        since = tl.exp2(decay)
        reads *= since * K**-0.5
        erases *= since
        writes *= tl.exp2(tl.where(valid[:, None], end[None, :] - decay, NEVER))
        strength_grad -= tl.sum(erases * keys, axis=1)
        erases *= -strengths[:, None]
        through = tl.exp2(end) * overlap + tl.sum(keys * writes, axis=0)
        is_last = valid & (rows == last)
        gates = queries * reads + keys * (erases - writes)
        gates += tl.where(is_last[:, None], through[None, :], 0.0)
        store_tile(q_part, reads, rows, valid, first, K, BLOCK_K)
        store_tile(k_part, erases + writes, rows, valid, first, K, BLOCK_K)
        store_tile(gate_part, gates, rows, valid, first, K, BLOCK_K)
    tl.store(beta_grad + rows, strength_grad.to(beta_grad.dtype.element_ty), valid)


@triton.jit
def score_grads(
    q,
    k,
    cumulative,
    mixing_grad,
    coupling_grad,
    q_part,
    k_part,
    gate_part,
    q_grad,
    k_grad,
    chunks,
    H: tl.constexpr,
    K: tl.constexpr,
    DOT: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Take the gradients that pass through the scores, for the 16 tokens of a tile.

    As rows of the scores they are split as in `forward.score_tiles`. As columns they are split at
    their tile's last G plus half of what a tile can decay by, its mirror image.
    """
    tile = tl.program_id(0) % TILES
    head = tl.program_id(1)
    first = tl.program_id(2) * BLOCK_K
    bounds = chunk_bounds(chunks, tl.program_id(0) // TILES)
    origin, begin, end = bounds
    top = origin + tile * TILE
    if (top >= end) | (top + TILE <= begin):
        return
    bottom = tl.minimum(top + TILE, end) - 1
    top = tl.maximum(top, begin)
    rows, valid = token_rows(bounds, tile * TILE, head, H, TILE)
    others, is_token = token_rows(bounds, 0, head, H, CHUNK)
    place = tl.arange(0, CHUNK)
    is_earlier = is_token & (place < (tile + 1) * TILE)
    is_later = is_token & (place >= tile * TILE)
    own = load_tile(cumulative, rows, valid, first, K, BLOCK_K)
    decay = load_tile(cumulative, others, is_token, first, K, BLOCK_K)
    own_queries = load_tile(q, rows, valid, first, K, BLOCK_K).to(tl.float32)
    own_keys = load_tile(k, rows, valid, first, K, BLOCK_K).to(tl.float32)
    queries = load_tile(q, others, is_token, first, K, BLOCK_K)
    keys = load_tile(k, others, is_token, first, K, BLOCK_K)

    reference = load_row(cumulative, top * H + head, first, K, BLOCK_K)[None, :] - MIDDLE
    shrunk = keys * tl.exp2(tl.where(is_earlier[:, None], reference - decay, NEVER))
    grow = tl.exp2(tl.where(valid[:, None], own - reference, NEVER))
    reads = load_tile(mixing_grad, rows, valid, 0, CHUNK, CHUNK)
    erases = load_tile(coupling_grad, rows, valid, 0, CHUNK, CHUNK)
    dq = product(reads, shrunk, DOT) * grow
    erased = product(erases, shrunk, DOT) * grow

    reference = load_row(cumulative, bottom * H + head, first, K, BLOCK_K)[None, :] + MIDDLE
    grow = tl.exp2(tl.where(is_later[:, None], decay - reference, NEVER))
    shrink = tl.exp2(tl.where(valid[:, None], reference - own, NEVER))
    reads = tl.trans(load_tile(mixing_grad, others, is_later, tile * TILE, CHUNK, TILE))
    erases = tl.trans(load_tile(coupling_grad, others, is_later, tile * TILE, CHUNK, TILE))
    written = product(reads, queries * grow, DOT) + product(erases, keys * grow, DOT)
    written *= shrink

    gates = load_tile(gate_part, rows, valid, first, K, BLOCK_K)
    gates += own_queries * dq + own_keys * (erased - written)
    dq += load_tile(q_part, rows, valid, first, K, BLOCK_K)
    dk = load_tile(k_part, rows, valid, first, K, BLOCK_K) + erased + written
    store_tile(q_grad, dq, rows, valid, first, K, BLOCK_K)
    store_tile(k_grad, dk, rows, valid, first, K, BLOCK_K)
    store_tile(gate_part, gates, rows, valid, first, K, BLOCK_K)


@triton.jit
def sum_gate_grads(
    gate_part, g_grad, chunks, H: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr
):
    """Give each gate the gradients of its own and all later cumulative gates of its chunk."""
    bounds = chunk_bounds(chunks, tl.program_id(0))
    rows, valid = token_rows(bounds, 0, tl.program_id(1), H, CHUNK)
    first = tl.program_id(2) * BLOCK_K
    grads = load_tile(gate_part, rows, valid, first, K, BLOCK_K)
    store_tile(g_grad, tl.cumsum(grads, axis=0, reverse=True), rows, valid, first, K, BLOCK_K)


PULL_CORRECTIONS = Kernel(
    function=pull_corrections,
    configs=[Config(32, 4, 1), Config(128, 8, 1), Config(64, 4, 1)],
    split="V",
)
CARRY_STATE_GRADS = Kernel(
    function=carry_state_grads,
    configs=[Config(32, 4, 2), Config(32, 4, 1), Config(16, 4, 2), Config(64, 8, 1)],
    float32=Config(16, 8, 2),
    split="V",
)
SOLVE_GRADS = Kernel(
    function=solve_grads,
    configs=[Config(32, 4, 2), Config(64, 4, 2), Config(64, 8, 2)],
)
STATE_GRADS = Kernel(
    function=state_grads,
    configs=[Config(32, 4, 2), Config(64, 4, 2), Config(64, 8, 2)],
)
SCORE_GRADS = Kernel(
    function=score_grads,
    configs=[Config(32, 4, 1), Config(32, 8, 1), Config(64, 8, 1)],
    float32=Config(32, 8, 1),
    split="K",
)
SUM_GATE_GRADS = Kernel(
    function=sum_gate_grads,
    configs=[Config(64, 4, 1), Config(32, 4, 1), Config(32, 2, 1)],
    split="K",
)


def aot_cases() -> Sequence[AotCase]:
    """List every configuration of every backward kernel."""
    kernels = (
        PULL_CORRECTIONS,
        CARRY_STATE_GRADS,
        SOLVE_GRADS,
        STATE_GRADS,
        SCORE_GRADS,
        SUM_GATE_GRADS,
    )
    return [case for kernel in kernels for case in kernel.aot_cases()]
