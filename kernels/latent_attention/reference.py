"""Latent attention as it is written: each sequence's latents, gathered, and a softmax."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

if TYPE_CHECKING:
    from kernels.latent_attention import PagedBatch

TILE = 32
"""Tokens whose keys lie side by side."""


def paged_latent_attention(
    q: Float[Tensor, "T H R"],
    latent: Float[Tensor, "T R"],
    pages: Float[Tensor, "N X"],
    batch: "PagedBatch",
    scale: float,
) -> Float[Tensor, "T H R"]:
    """See `kernels.latent_attention`."""
    rank = latent.shape[1]
    page_tokens = pages.shape[1] // (2 * rank)
    output = torch.empty_like(q)
    bounds = itertools.pairwise(batch.cu_seqlens.tolist())
    for row, ((start, stop), length) in enumerate(zip(bounds, batch.lengths.tolist(), strict=True)):
        position = torch.arange(length, device=q.device)
        page = batch.page_table[row].long()[position // page_tokens]
        key_at, value_at = _places(position % page_tokens, page_tokens, rank)
        new = slice(length - (stop - start), length)
        pages[page[new, None], key_at[new]] = latent[start:stop]
        pages[page[new, None], value_at[new]] = latent[start:stop]
        keys, values = pages[page[:, None], key_at], pages[page[:, None], value_at]
        output[start:stop] = _attend(q[start:stop], keys, values, scale)
    return output


def packed_latent_attention(
    q: Float[Tensor, "T H R"], latent: Float[Tensor, "T R"], bounds: Sequence[int], scale: float
) -> Float[Tensor, "T H R"]:
    """See `kernels.latent_attention`; `bounds` are the numbers of `cu_seqlens`."""
    sequences = [slice(start, stop) for start, stop in itertools.pairwise(bounds)]
    return torch.cat([_attend(q[rows], latent[rows], latent[rows], scale) for rows in sequences])


def _attend(
    q: Float[Tensor, "T H R"],
    keys: Float[Tensor, "J R"],
    values: Float[Tensor, "J R"],
    scale: float,
) -> Float[Tensor, "T H R"]:
    """Attend from the last T of a sequence's J tokens."""
    scores = scale * torch.einsum("thr,jr->thj", q, keys)
    position = torch.arange(len(keys), device=q.device)
    later = position > position[len(keys) - len(q) :, None]
    weights = scores.masked_fill(later[:, None], -torch.inf).softmax(dim=-1)
    return torch.einsum("thj,jr->thr", weights, values)


def _places(
    token: Int[Tensor, " J"], page_tokens: int, rank: int
) -> tuple[Int[Tensor, "J R"], Int[Tensor, "J R"]]:
    """Return where in a page the keys and the values of its tokens lie."""
    channel = torch.arange(rank, device=token.device)
    tile, lane = (token // TILE)[:, None], (token % TILE)[:, None]
    key_at = (tile * rank + channel) * TILE + lane
    return key_at, (page_tokens + token)[:, None] * rank + channel
