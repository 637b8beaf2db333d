"""The attention residual on a GPU: none of the candidates is copied, no weights are kept.

A kernel takes the candidates as a tuple of pointers and is compiled once per number of them. The
softmax over depth runs online, as it does over keys in a fused attention: each candidate is loaded
once, and a row's mixture, its highest score and the sum of the exponentials are carried along.

For the backward pass only the logarithm of that sum is kept, lse: p_i = exp(score_i - lse). It goes
through the candidates twice, for sum_j p_j dy . c_j and for the gradients; the second time they
come from the cache. The sum is also dy . y, but of a y that was rounded to bfloat16: where one
candidate takes nearly all the weight, the scores' gradients would be mostly that rounding.
"""

# A kernel's arguments are what a launch passes by position, pointers and numbers of the device.
# ruff: noqa: ANN001, ANN201, PLR0917
# Triton's loops over constants are typed for its own compiler.
# pyright: reportGeneralTypeIssues=false

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from kernels.aot import AotCase
from kernels.precision import widen
from kernels.row_tiles import divide_tiles, tile_rows

FORWARD_CONFIGS = ((4096, 32), (4096, 16))
"""Elements per program and per thread that are worth trying; the first is launched."""
BACKWARD_CONFIGS = ((4096, 16), (4096, 32))
"""The same for the backward kernel, which keeps a sum for the query beside each row."""
MAX_WIDTH = 16384
"""Longest row that a program can hold."""


@triton.jit
def pick(pointers, i):
    """Return the i-th pointer of a tuple, for an i that is known at run time only.

    A loop over it is not unrolled: unrolled, it would hold the rows of many candidates at once.
    """
    picked = pointers[0]
    for j in tl.static_range(1, len(pointers)):
        picked = tl.where(i == j, pointers[j], picked)
    return picked


@triton.jit
def score_rows(c, w, width, eps):
    """Return the scores of a candidate's rows [BLOCK_ROWS, BLOCK_COLUMNS], and their 1 / rms."""
    inverse_rms = tl.rsqrt(tl.sum(c * c, axis=1) / width + eps)
    return tl.sum(c * w, axis=1) * inverse_rms, inverse_rms


@triton.jit
def mix(
    candidates,
    direction,
    y,
    lse,
    eps,
    num_tokens,
    width,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Write the mixture of one tile of tokens, and the log-sum-exp of their scores."""
    tokens = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    columns = tl.arange(0, BLOCK_COLUMNS)[None, :]
    mask = (tokens < num_tokens)[:, None] & (columns < width)
    places = tokens[:, None] * width + columns
    w = tl.load(direction + columns, mask=columns < width, other=0.0)
    highest = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    mixture = tl.zeros([BLOCK_ROWS, BLOCK_COLUMNS], tl.float32)
    for i in range(len(candidates)):
        c = tl.load(pick(candidates, i) + places, mask=mask, other=0.0).to(tl.float32)
        score, _ = score_rows(c, w, width, eps)
        higher = tl.maximum(highest, score)
        kept = tl.exp(highest - higher)
        p = tl.exp(score - higher)
        total = total * kept + p
        mixture = mixture * kept[:, None] + c * p[:, None]
        highest = higher
    tl.store(y + places, mixture / total[:, None], mask)
    tl.store(lse + tokens, highest + tl.log(total), tokens < num_tokens)


@triton.jit
def mix_back(
    grad,
    candidates,
    candidate_grads,
    direction,
    lse,
    direction_parts,
    eps,
    num_tokens,
    width,
    tiles_per_program,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Write the candidates' gradients of a share of the tokens, and its part of the direction's."""
    columns = tl.arange(0, BLOCK_COLUMNS)[None, :]
    w = tl.load(direction + columns, mask=columns < width, other=0.0)
    part = tl.zeros([BLOCK_ROWS, BLOCK_COLUMNS], tl.float32)
    first = tl.program_id(0) * tiles_per_program
    last = tl.minimum(first + tiles_per_program, tl.cdiv(num_tokens, BLOCK_ROWS))
    for tile in range(first, last):
        tokens = tl.cast(tile, tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        mask = (tokens < num_tokens)[:, None] & (columns < width)
        places = tokens[:, None] * width + columns
        dy = tl.load(grad + places, mask=mask, other=0.0).to(tl.float32)
        log_total = tl.load(lse + tokens, mask=tokens < num_tokens, other=0.0)
        expected = tl.zeros([BLOCK_ROWS], tl.float32)
        for i in range(len(candidates)):
            c = tl.load(pick(candidates, i) + places, mask=mask, other=0.0).to(tl.float32)
            score, _ = score_rows(c, w, width, eps)
            expected += tl.exp(score - log_total) * tl.sum(dy * c, axis=1)
        for i in range(len(candidates)):
            c = tl.load(pick(candidates, i) + places, mask=mask, other=0.0).to(tl.float32)
            score, inverse_rms = score_rows(c, w, width, eps)
            p = tl.exp(score - log_total)
            agreement = tl.sum(dy * c, axis=1)
            surplus = agreement - expected  # pyright: ignore[reportOperatorIssue]  of the compiler
            pull = p * surplus * inverse_rms
            shrink = pull * score * inverse_rms / width
            c_grad = dy * p[:, None] + w * pull[:, None] - c * shrink[:, None]
            tl.store(pick(candidate_grads, i) + places, c_grad, mask)
            part += c * pull[:, None]
    parts = direction_parts + tl.program_id(0).to(tl.int64) * width + tl.arange(0, BLOCK_COLUMNS)
    tl.store(parts, tl.sum(part, axis=0), tl.arange(0, BLOCK_COLUMNS) < width)


def attention_residual_triton(
    candidates: Sequence[Float[Tensor, "T D"]],
    query: Float[Tensor, " D"],
    norm_weight: Float[Tensor, " D"],
    eps: float,
) -> Float[Tensor, "T D"]:
    """Run the kernels; see `kernels.attention_residual`.

    Raises:
        ValueError: D is more than a program can hold.
    """
    if len(query) > MAX_WIDTH:
        raise ValueError(
            f"attention_residual: D = {len(query)}, the kernels take at most {MAX_WIDTH}"
        )
    direction = widen(query) * widen(norm_weight)
    rows = (candidate.contiguous() for candidate in candidates)
    return TritonDepthMixture.apply(eps, direction, *rows)  # pyright: ignore[reportReturnType]  torch types apply as Any


class TritonDepthMixture(torch.autograd.Function):
    """The kernels as a function of the candidates and of w = query * norm_weight, float32."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        eps: float,
        direction: Tensor,
        *candidates: Tensor,
    ) -> Tensor:
        """Launch `mix`."""
        num_tokens, width = candidates[0].shape
        y, lse = torch.empty_like(candidates[0]), direction.new_empty(num_tokens)
        tile = tile_rows(width, *FORWARD_CONFIGS[0])
        grid = (triton.cdiv(num_tokens, tile.rows),)
        tile.launch(mix, grid, candidates, direction, y, lse, eps, num_tokens, width)
        ctx.save_for_backward(direction, lse, *candidates)
        ctx.eps = eps
        return y

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        *grads: Tensor,
    ) -> tuple[Tensor | None, ...]:
        """Launch `mix_back` and add up its parts."""
        direction, lse, *candidates = ctx.saved_tensors
        num_tokens, width = candidates[0].shape
        candidate_grads = tuple(torch.empty_like(candidate) for candidate in candidates)
        tile = tile_rows(width, *BACKWARD_CONFIGS[0])
        num_programs, share = divide_tiles(triton.cdiv(num_tokens, tile.rows))
        parts = direction.new_empty(num_programs, width)
        tile.launch(
            mix_back,
            (num_programs,),
            *(grads[0].contiguous(), tuple(candidates), candidate_grads, direction, lse, parts),
            *(ctx.eps, num_tokens, width, share),
        )
        return None, parts.sum(dim=0), *candidate_grads


def aot_cases() -> Sequence[AotCase]:
    """List every configuration at the widths and depths of `k3` and of `tiny`."""
    numbers = {"eps": "fp32", "num_tokens": "i32", "width": "i32"}
    cases: list[AotCase] = []
    for width, x, depth in ((7168, "*bf16", 9), (128, "*fp32", 3)):
        rows = (x,) * depth
        forward = {"candidates": rows, "direction": "*fp32", "y": x, "lse": "*fp32"} | numbers
        backward = (
            {"grad": x, "candidates": rows, "candidate_grads": rows, "direction": "*fp32"}
            | {"lse": "*fp32", "direction_parts": "*fp32"}
            | numbers
            | {"tiles_per_program": "i32"}
        )
        cases.extend(
            tile_rows(width, *config).aot_case(
                kernel, f"N={depth} D={width} {x[1:]}", signature, chosen=config is configs[0]
            )
            for kernel, signature, configs in (
                (mix, forward, FORWARD_CONFIGS),
                (mix_back, backward, BACKWARD_CONFIGS),
            )
            for config in configs
        )
    return cases
