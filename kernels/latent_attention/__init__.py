"""Causal attention of H heads over one latent per token, the latents kept in pages.

A token at position p with queries q_h [R] sees the latents c_0 .. c_p [R] of its sequence:

    s_hj = scale q_h . c_j                        j = 0 .. p
    o_h  = sum_j softmax(s_h)_j c_j

Keys and values of all heads are the latents: the absorbed form of multi-head latent attention,
exact without positions. A page holds the latents of P tokens twice: as keys, transposed in tiles of
`TILE` tokens [P / TILE, R, TILE], and behind them as values, row by row [P, R]. Scores then read
keys side by side, and the weighted sum reads a value's channels side by side.

The CPU form adds everything up in one order, whatever the batch. A token's output depends, bit for
bit, on its sequence alone: neither on what else is in the batch, nor on how a prompt is split, nor
on which pages hold it. The learner's whole sequences, without a cache and with a gradient, go
through the same loop (`packed_latent_attention`) and get the same bits.
"""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from kernels.checks import check_cu_seqlens, check_tensors
from kernels.lane import lane_of
from kernels.latent_attention import reference
from kernels.latent_attention.reference import TILE as TILE

OP = "latent_attention"


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """Sequences that grow by the tokens of one forward."""

    cu_seqlens: Int[Tensor, " B1"]
    """First new token of each sequence in the batch, and T at the end."""
    lengths: Int[Tensor, " B"]
    """Tokens of each sequence, the new ones included."""
    page_table: Int[Tensor, "B M"]
    """Pages of each sequence, in order; as many as its length needs, then anything."""


def paged_latent_attention(
    q: Float[Tensor, "T H R"],
    latent: Float[Tensor, "T R"],
    pages: Float[Tensor, "N X"],
    batch: PagedBatch,
    scale: float,
) -> Float[Tensor, "T H R"]:
    """Put new latents into their pages, then attend from the new tokens to all before them.

    Args:
        q: Queries of the new tokens.
        latent: Latents of the new tokens.
        pages: X = 2PR numbers each, written where the new tokens lie. They may lie apart.
        batch: Where the sequences are.
        scale: Multiplies the scores.

    Raises:
        ValueError: a shape, type, device or stride does not fit, a page holds no whole number of
            tiles, or a sequence is shorter than its new tokens or longer than its pages.
    """
    sizes = check_tensors(
        OP, {"q": (q, "T H R"), "latent": (latent, "T R"), "pages": (pages, "N X")}
    )
    tile_size = 2 * sizes["R"] * TILE
    if sizes["X"] % tile_size:
        raise ValueError(
            f"{OP}: a page of {sizes['X']} numbers is no multiple of 2 R TILE = {tile_size}"
        )
    _check_batch(batch, sizes)
    if lane_of(q) == "cpu":
        from kernels.latent_attention import cpu

        return cpu.paged_latent_attention(q, latent, pages, batch, scale)
    return reference.paged_latent_attention(q, latent, pages, batch, scale)


def packed_latent_attention(
    q: Float[Tensor, "T H R"],
    latent: Float[Tensor, "T R"],
    cu_seqlens: Int[Tensor, " S1"],
    scale: float,
) -> Float[Tensor, "T H R"]:
    """Attend causally inside each packed sequence, differentiably.

    Args:
        q: Queries.
        latent: Latents.
        cu_seqlens: Start of each sequence, and T at the end.
        scale: Multiplies the scores.

    Raises:
        ValueError: a shape, type, device or stride does not fit, or the pack's bounds do not.
    """
    sizes = check_tensors(OP, {"q": (q, "T H R"), "latent": (latent, "T R")})
    bounds = check_cu_seqlens(OP, cu_seqlens, sizes["T"])
    if lane_of(q) == "cpu":
        from kernels.latent_attention import cpu

        return cpu.PackedAttention.apply(q, latent, bounds, scale)  # pyright: ignore[reportReturnType]  torch types apply as Any
    return reference.packed_latent_attention(q, latent, bounds, scale)


def _check_batch(batch: PagedBatch, sizes: dict[str, int]) -> None:
    bounds = check_cu_seqlens(OP, batch.cu_seqlens, sizes["T"])
    lengths: list[int] = batch.lengths.tolist()
    if not len(lengths) == len(batch.page_table) == len(bounds) - 1:
        raise ValueError(
            f"{OP}: lengths of {len(lengths)} and pages of {len(batch.page_table)} sequences, for "
            f"a batch of {len(bounds) - 1}"
        )
    room = sizes["X"] // (2 * sizes["R"]) * batch.page_table.shape[1]
    for row, length in enumerate(lengths):
        new = bounds[row + 1] - bounds[row]
        if not new <= length <= room:
            raise ValueError(
                f"{OP}: sequence {row} has {length} tokens, {new} of them new, in pages for {room}"
            )
