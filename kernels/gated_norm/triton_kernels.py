"""The gated norm on a GPU: one kernel each way, everything between load and store in float32.

Backward, with r = 1 / sqrt(mean(x^2) + eps), n = x r, s = sigmoid(gate), h = dy s weight:

    dx      = r (h - n mean(h n))
    dgate   = dy weight n s (1 - s)
    dweight = sum over rows of dy s n

A program of the backward kernel walks down its share of the rows and keeps its sum for dweight in
registers; torch adds the programs' sums.
"""

# A kernel's arguments are what a launch passes by position, pointers and numbers of the device.
# ruff: noqa: ANN001, ANN201, PLR0917

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from kernels.aot import AotCase
from kernels.row_tiles import divide_tiles, tile_rows

CONFIGS = ((2048, 16), (4096, 16), (4096, 32))
"""Elements per program and per thread that are worth trying; the first is launched."""
MAX_WIDTH = 16384
"""Longest row that a program can hold."""


@triton.jit
def normalise(
    x,
    gate,
    weight,
    y,
    eps,
    num_rows,
    width,
    x_stride,
    gate_stride,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Write y for one tile of rows."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    columns = tl.arange(0, BLOCK_COLUMNS)[None, :]
    mask = (rows < num_rows) & (columns < width)
    value = tl.load(x + rows * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    logit = tl.load(gate + rows * gate_stride + columns, mask=mask, other=0.0).to(tl.float32)
    scale = tl.load(weight + columns, mask=columns < width, other=0.0).to(tl.float32)
    square_sum = tl.sum(value * value, axis=1, keep_dims=True)
    inverse_rms = tl.rsqrt(square_sum / width + eps)
    output = value * inverse_rms * scale * tl.sigmoid(logit)
    tl.store(y + rows * width + columns, output, mask)


@triton.jit
def normalise_back(
    grad,
    x,
    gate,
    weight,
    x_grad,
    gate_grad,
    weight_parts,
    eps,
    num_rows,
    width,
    x_stride,
    gate_stride,
    tiles_per_program,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Write the gradients of a program's share of the rows, and its part of the weight's."""
    columns = tl.arange(0, BLOCK_COLUMNS)[None, :]
    scale = tl.load(weight + columns, mask=columns < width, other=0.0).to(tl.float32)
    part = tl.zeros([BLOCK_ROWS, BLOCK_COLUMNS], tl.float32)
    first = tl.program_id(0) * tiles_per_program
    last = tl.minimum(first + tiles_per_program, tl.cdiv(num_rows, BLOCK_ROWS))
    for tile in range(first, last):
        rows = tl.cast(tile, tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
        mask = (rows < num_rows) & (columns < width)
        places = rows * width + columns
        dy = tl.load(grad + places, mask=mask, other=0.0).to(tl.float32)
        value = tl.load(x + rows * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
        logit = tl.load(gate + rows * gate_stride + columns, mask=mask, other=0.0).to(tl.float32)
        square_sum = tl.sum(value * value, axis=1, keep_dims=True)
        inverse_rms = tl.rsqrt(square_sum / width + eps)
        normed = value * inverse_rms
        switch = tl.sigmoid(logit)
        pull = dy * switch * normed
        shared = tl.sum(pull * scale, axis=1, keep_dims=True) / width
        tl.store(x_grad + places, inverse_rms * (dy * switch * scale - normed * shared), mask)
        tl.store(gate_grad + places, pull * scale * (1.0 - switch), mask)
        part += pull
    parts = weight_parts + tl.program_id(0).to(tl.int64) * width + tl.arange(0, BLOCK_COLUMNS)
    tl.store(parts, tl.sum(part, axis=0), tl.arange(0, BLOCK_COLUMNS) < width)


def gated_norm_triton(
    x: Float[Tensor, "T H V"],
    gate: Float[Tensor, "T H V"],
    weight: Float[Tensor, " V"],
    eps: float,
) -> Float[Tensor, "T H V"]:
    """Run the kernels; see `kernels.gated_norm`.

    Raises:
        ValueError: V is more than a program can hold.
    """
    if len(weight) > MAX_WIDTH:
        raise ValueError(f"gated_norm: V = {len(weight)}, the kernels take at most {MAX_WIDTH}")
    return TritonGatedNorm.apply(x, gate, weight, eps)  # pyright: ignore[reportReturnType]  torch types apply as Any


class TritonGatedNorm(torch.autograd.Function):
    """The kernels as a function autograd knows."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        x: Tensor,
        gate: Tensor,
        weight: Tensor,
        eps: float,
    ) -> Tensor:
        """Launch `normalise`."""
        rows, gate_rows = x.reshape(-1, len(weight)), gate.reshape(-1, len(weight))
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        num_rows, width = rows.shape
        sizes = num_rows, width, rows.stride(0), gate_rows.stride(0)
        tile = tile_rows(width, *CONFIGS[0])
        grid = (triton.cdiv(num_rows, tile.rows),)
        tile.launch(normalise, grid, rows, gate_rows, weight, y, eps, *sizes)
        ctx.save_for_backward(rows, gate_rows, weight)
        ctx.eps = eps
        return y

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        *grads: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, None]:
        """Launch `normalise_back` and add up its parts."""
        rows, gate_rows, weight = ctx.saved_tensors
        grad = grads[0].contiguous()
        x_grad, gate_grad = torch.empty_like(grad), torch.empty_like(grad)
        num_rows, width = rows.shape
        tile = tile_rows(width, *CONFIGS[0])
        num_programs, share = divide_tiles(triton.cdiv(num_rows, tile.rows))
        parts = rows.new_empty(num_programs, width, dtype=torch.float32)
        inputs = grad, rows, gate_rows, weight
        sizes = num_rows, width, rows.stride(0), gate_rows.stride(0)
        tile.launch(
            normalise_back,
            (num_programs,),
            *(*inputs, x_grad, gate_grad, parts),
            *(ctx.eps, *sizes, share),
        )
        return x_grad, gate_grad, parts.sum(dim=0).to(weight.dtype), None


def aot_cases() -> Sequence[AotCase]:
    """List every configuration at the head widths of `k3` and of `tiny`."""
    inputs = ("x", "gate", "weight")
    sizes = ("num_rows", "width", "x_stride", "gate_stride")
    back_tensors = ("grad", *inputs, "x_grad", "gate_grad")
    cases: list[AotCase] = []
    for width, x in ((128, "bf16"), (32, "fp32")):
        numbers = {"eps": "fp32"} | dict.fromkeys(sizes, "i32")
        signatures = {
            normalise: dict.fromkeys((*inputs, "y"), f"*{x}") | numbers,
            normalise_back: dict.fromkeys(back_tensors, f"*{x}")
            | {"weight_parts": "*fp32"}
            | numbers
            | {"tiles_per_program": "i32"},
        }
        cases.extend(
            tile_rows(width, *config).aot_case(
                kernel, f"V={width} {x}", signature, chosen=config is CONFIGS[0]
            )
            for kernel, signature in signatures.items()
            for config in CONFIGS
        )
    return cases
