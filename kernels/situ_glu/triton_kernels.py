"""SiTU-GLU on a GPU: one kernel each way, everything between load and store in float32.

The backward kernel reads the inputs again instead of anything saved: a load costs less than the
three intermediate tensors it would take.
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
from kernels.row_tiles import tile_columns

CONFIGS = ((1024, 1024, 4), (2048, 1024, 4), (2048, 2048, 8))
"""Elements, most columns and warps of a tile that are worth trying; the first is launched."""


@triton.jit
def tanh(x):
    """Return the hyperbolic tangent and its derivative, each accurate relative to itself.

    With e = exp(-2|x|) they are (1 - e) / (1 + e) and 4 e / (1 + e)^2. The first loses digits where
    e is close to 1: there the series x - x^3/3 + 2x^5/15 - 17x^7/315 + 62x^9/2835 takes over, whose
    next term is below 1e-8 x. One minus the square would lose the derivative where the first is 1.
    """
    square = x * x
    series = 62.0 / 2835.0
    series = series * square - 17.0 / 315.0
    series = series * square + 2.0 / 15.0
    series = series * square - 1.0 / 3.0
    series = x * (series * square + 1.0)
    decayed = tl.exp(-2.0 * tl.abs(x))
    ratio = (1.0 - decayed) / (1.0 + decayed)
    value = tl.where(tl.abs(x) < 0.25, series, tl.where(x < 0.0, -ratio, ratio))
    return value, 4.0 * decayed / ((1.0 + decayed) * (1.0 + decayed))


@triton.jit
def tile_places(num_rows, width, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr):
    """Return rows (int64), columns and mask of this program's tile."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    columns = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    return rows[:, None], columns[None, :], (rows < num_rows)[:, None] & (columns < width)[None, :]


@triton.jit
def combine(
    gate,
    up,
    y,
    beta,
    linear_beta,
    num_rows,
    width,
    gate_stride,
    up_stride,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Write y for one tile."""
    rows, columns, mask = tile_places(num_rows, width, BLOCK_ROWS, BLOCK_COLUMNS)
    g = tl.load(gate + rows * gate_stride + columns, mask=mask, other=0.0).to(tl.float32)
    u = tl.load(up + rows * up_stride + columns, mask=mask, other=0.0).to(tl.float32)
    a, _ = tanh(g / beta)
    b, _ = tanh(u / linear_beta)
    tl.store(y + rows * width + columns, beta * a * tl.sigmoid(g) * linear_beta * b, mask)


@triton.jit
def combine_back(
    grad,
    gate,
    up,
    gate_grad,
    up_grad,
    beta,
    linear_beta,
    num_rows,
    width,
    gate_stride,
    up_stride,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Write both gradients for one tile, by the formulas of `kernels.situ_glu.reference`."""
    rows, columns, mask = tile_places(num_rows, width, BLOCK_ROWS, BLOCK_COLUMNS)
    places = rows * width + columns
    dy = tl.load(grad + places, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(gate + rows * gate_stride + columns, mask=mask, other=0.0).to(tl.float32)
    u = tl.load(up + rows * up_stride + columns, mask=mask, other=0.0).to(tl.float32)
    a, a_slope = tanh(g / beta)
    b, b_slope = tanh(u / linear_beta)
    s = tl.sigmoid(g)
    gate_slope = s * (a_slope + beta * a * tl.sigmoid(-g))
    tl.store(gate_grad + places, dy * linear_beta * b * gate_slope, mask)
    tl.store(up_grad + places, dy * beta * a * s * b_slope, mask)


def situ_glu_triton(
    gate: Float[Tensor, "*rows F"], up: Float[Tensor, "*rows F"], beta: float, linear_beta: float
) -> Float[Tensor, "*rows F"]:
    """Run the kernels; see `kernels.situ_glu`."""
    return TritonSituGlu.apply(gate, up, beta, linear_beta)  # pyright: ignore[reportReturnType]  torch types apply as Any


class TritonSituGlu(torch.autograd.Function):
    """The kernels as a function autograd knows."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        gate: Tensor,
        up: Tensor,
        beta: float,
        linear_beta: float,
    ) -> Tensor:
        """Launch `combine`."""
        width = gate.shape[-1]
        gate_rows, up_rows = gate.reshape(-1, width), up.reshape(-1, width)
        y = torch.empty_like(gate, memory_format=torch.contiguous_format)
        _launch(combine, (gate_rows, up_rows), (y,), (beta, linear_beta))
        ctx.save_for_backward(gate_rows, up_rows)
        ctx.betas = beta, linear_beta
        return y

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        *grads: Tensor,
    ) -> tuple[Tensor, Tensor, None, None]:
        """Launch `combine_back`."""
        gate_rows, up_rows = ctx.saved_tensors
        grad = grads[0].contiguous()
        gate_grad, up_grad = torch.empty_like(grad), torch.empty_like(grad)
        _launch(combine_back, (gate_rows, up_rows), (gate_grad, up_grad), ctx.betas, grad)
        return gate_grad, up_grad, None, None


def _launch(
    kernel: Any,  # noqa: ANN401  what `triton.jit` returns has no public type
    inputs: tuple[Tensor, Tensor],
    outputs: tuple[Tensor, ...],
    betas: tuple[float, float],
    *upstream: Tensor,
) -> None:
    num_rows, width = inputs[0].shape
    strides = (rows.stride(0) for rows in inputs)
    tile = tile_columns(width, *CONFIGS[0])
    grid = triton.cdiv(num_rows, tile.rows), triton.cdiv(width, tile.columns)
    tile.launch(kernel, grid, *upstream, *inputs, *outputs, *betas, num_rows, width, *strides)


def aot_cases() -> Sequence[AotCase]:
    """List every configuration at the widths of a routed expert of `k3` and of `tiny`."""
    numbers = {"beta": "fp32", "linear_beta": "fp32"} | dict.fromkeys(
        ("num_rows", "width", "gate_stride", "up_stride"), "i32"
    )
    return [
        tile_columns(width, *config).aot_case(
            kernel,
            f"F={width} {x}",
            dict.fromkeys(tensors, f"*{x}") | numbers,
            chosen=config is CONFIGS[0],
        )
        for kernel, tensors in (
            (combine, ("gate", "up", "y")),
            (combine_back, ("grad", "gate", "up", "gate_grad", "up_grad")),
        )
        for width, x in ((3072, "bf16"), (96, "fp32"))
        for config in CONFIGS
    ]
