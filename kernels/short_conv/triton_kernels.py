"""The packed short convolution on a GPU, forward and backward.

A program takes a tile of tokens times channels. Each token knows its sequence, and so where the
sequence begins and ends: what a tap finds before the beginning comes from the tail, what a gradient
would fetch from beyond the end is zero. Tiles need not respect boundaries.
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
from jaxtyping import Float, Int
from torch import Tensor

from kernels.aot import AotCase
from kernels.row_tiles import divide_tiles, next_power_of_two, tile_columns

FORWARD_CONFIGS = ((2048, 128, 4), (4096, 128, 4), (4096, 256, 8))
"""Elements, most channels and warps of a tile that are worth trying; the first is launched."""
BACKWARD_CONFIGS = ((2048, 128, 4), (1024, 64, 4), (4096, 128, 8))
"""The same for the backward kernel, which keeps a sum per tap beside the tile."""
TAILS_CONFIG = (1024, 128, 4)
"""The same for the gradients of the tails, of which there are few."""


@triton.jit
def load_inputs(
    x,
    tails,
    source,
    start,
    sequence,
    is_token,
    channels,
    width,
    x_stride,
    REACH: tl.constexpr,
    HAS_TAILS: tl.constexpr,
):
    """Load the inputs at tokens `source`, which may lie before the sequences' starts."""
    is_channel = channels < width
    inside = is_token & (source >= start)
    rows = source.to(tl.int64)[:, None] * x_stride
    values = tl.load(x + rows + channels, mask=inside[:, None] & is_channel, other=0.0)
    values = values.to(tl.float32)
    if HAS_TAILS:
        before = is_token & (source < start)
        rows = (sequence.to(tl.int64) * REACH + REACH + source - start)[:, None] * width
        tail = tl.load(tails + rows + channels, mask=before[:, None] & is_channel, other=0.0)
        values += tail.to(tl.float32)
    return values


@triton.jit
def convolve(
    x,
    weight,
    tails,
    y,
    bounds,
    sequences,
    num_tokens,
    width,
    x_stride,
    TAPS: tl.constexpr,
    HAS_TAILS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Write y for one tile."""
    REACH: tl.constexpr = TAPS - 1
    tokens = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    channels = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)[None, :]
    is_token = tokens < num_tokens
    sequence = tl.load(sequences + tokens, mask=is_token, other=0)
    start = tl.load(bounds + sequence, mask=is_token, other=0)
    total = tl.zeros([BLOCK_ROWS, BLOCK_COLUMNS], tl.float32)
    for i in tl.static_range(TAPS):
        values = load_inputs(
            *(x, tails, tokens - REACH + i, start, sequence, is_token, channels, width, x_stride),
            REACH,
            HAS_TAILS,
        )
        tap = tl.load(weight + channels * TAPS + i, mask=channels < width, other=0.0)
        total += values * tap.to(tl.float32)
    places = tokens.to(tl.int64)[:, None] * width + channels
    tl.store(y + places, total, is_token[:, None] & (channels < width))


@triton.jit
def convolve_back(
    grad,
    x,
    weight,
    tails,
    x_grad,
    taps_parts,
    bounds,
    sequences,
    num_tokens,
    width,
    x_stride,
    tiles_per_program,
    TAPS: tl.constexpr,
    TAP_ROWS: tl.constexpr,
    HAS_TAILS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Write x's gradient for a share of the tokens, and its part of the taps' gradients."""
    REACH: tl.constexpr = TAPS - 1
    channels = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)[None, :]
    is_channel = channels < width
    tap_rows = tl.arange(0, TAP_ROWS)[:, None]
    part = tl.zeros([TAP_ROWS, BLOCK_COLUMNS], tl.float32)
    first = tl.program_id(0) * tiles_per_program
    last = tl.minimum(first + tiles_per_program, tl.cdiv(num_tokens, BLOCK_ROWS))
    for tile in range(first, last):
        tokens = tile * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        is_token = tokens < num_tokens
        sequence = tl.load(sequences + tokens, mask=is_token, other=0)
        start = tl.load(bounds + sequence, mask=is_token, other=0)
        end = tl.load(bounds + sequence + 1, mask=is_token, other=0)
        places = tokens.to(tl.int64)[:, None] * width + channels
        dy = tl.load(grad + places, mask=is_token[:, None] & is_channel, other=0.0).to(tl.float32)
        total = tl.zeros([BLOCK_ROWS, BLOCK_COLUMNS], tl.float32)
        for i in tl.static_range(TAPS):
            # Token t is the input of tap i for the output of token t + REACH - i.
            fed = tokens + REACH - i
            mask = (is_token & (fed < end))[:, None] & is_channel
            rows = fed.to(tl.int64)[:, None] * width
            fed_grad = tl.load(grad + rows + channels, mask=mask, other=0.0).to(tl.float32)
            tap = tl.load(weight + channels * TAPS + i, mask=is_channel, other=0.0)
            total += fed_grad * tap.to(tl.float32)
            values = load_inputs(
                *(x, tails, tokens - REACH + i, start, sequence, is_token, channels, width),
                x_stride,
                REACH,
                HAS_TAILS,
            )
            part += tl.where(tap_rows == i, tl.sum(dy * values, axis=0, keep_dims=True), 0.0)
        tl.store(x_grad + places, total, is_token[:, None] & is_channel)
    rows = (tl.program_id(0) * TAPS + tap_rows).to(tl.int64)
    tl.store(taps_parts + rows * width + channels, part, (tap_rows < TAPS) & is_channel)


@triton.jit
def tails_back(
    grad,
    weight,
    tails_grad,
    bounds,
    num_sequences,
    width,
    TAPS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Write the gradients of some tails: row j feeds the tokens 0 .. j by tap j - token."""
    REACH: tl.constexpr = TAPS - 1
    sequences = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    channels = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)[None, :]
    is_sequence, is_channel = sequences < num_sequences, channels < width
    start = tl.load(bounds + sequences, mask=is_sequence, other=0)
    end = tl.load(bounds + sequences + 1, mask=is_sequence, other=0)
    for j in tl.static_range(REACH):
        total = tl.zeros([BLOCK_ROWS, BLOCK_COLUMNS], tl.float32)
        for token in tl.static_range(j + 1):
            rows = (start + token)[:, None] * width
            mask = (start + token < end)[:, None] & is_channel
            dy = tl.load(grad + rows + channels, mask=mask, other=0.0).to(tl.float32)
            tap = tl.load(weight + channels * TAPS + j - token, mask=is_channel, other=0.0)
            total += dy * tap.to(tl.float32)
        rows = (sequences * REACH + j)[:, None] * width
        tl.store(tails_grad + rows + channels, total, is_sequence[:, None] & is_channel)


def short_conv_triton(
    x: Float[Tensor, "T C"],
    weight: Float[Tensor, "C I"],
    cu_seqlens: Int[Tensor, " S1"],
    tails: Float[Tensor, "S N C"] | None,
) -> Float[Tensor, "T C"]:
    """Run the kernels; see `kernels.short_conv`."""
    bounds = cu_seqlens.to(x.device, torch.int64, non_blocking=True)
    return TritonConv.apply(x, weight.contiguous(), tails, bounds)  # pyright: ignore[reportReturnType]  torch types apply as Any


class TritonConv(torch.autograd.Function):
    """The kernels as a function autograd knows."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        x: Tensor,
        weight: Tensor,
        tails: Tensor | None,
        bounds: Tensor,
    ) -> Tensor:
        """Find each token's sequence, and launch `convolve`."""
        num_tokens, width = x.shape
        tokens = torch.arange(num_tokens, device=x.device)
        sequences = torch.bucketize(tokens, bounds[1:], right=True, out_int32=True)
        tails = None if tails is None else tails.contiguous()
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        tile = tile_columns(width, *FORWARD_CONFIGS[0])
        tile.launch(
            convolve,
            (triton.cdiv(num_tokens, tile.rows), triton.cdiv(width, tile.columns)),
            *(x, weight, x if tails is None else tails, y, bounds, sequences),
            *(num_tokens, width, x.stride(0)),
            TAPS=weight.shape[1],
            HAS_TAILS=tails is not None,
        )
        ctx.save_for_backward(x, weight, tails, bounds, sequences)
        return y

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        *grads: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor | None, None]:
        """Launch `convolve_back`, add up its parts, and `tails_back` where there are tails."""
        x, weight, tails, bounds, sequences = ctx.saved_tensors
        grad = grads[0].contiguous()
        num_tokens, width = x.shape
        num_taps = weight.shape[1]
        tile = tile_columns(width, *BACKWARD_CONFIGS[0])
        num_columns = triton.cdiv(width, tile.columns)
        num_programs, share = divide_tiles(triton.cdiv(num_tokens, tile.rows), num_columns)
        x_grad = torch.empty_like(grad)
        parts = grad.new_empty(num_programs, num_taps, width, dtype=torch.float32)
        tile.launch(
            convolve_back,
            (num_programs, num_columns),
            *(grad, x, weight, x if tails is None else tails, x_grad, parts, bounds, sequences),
            *(num_tokens, width, x.stride(0), share),
            TAPS=num_taps,
            TAP_ROWS=next_power_of_two(num_taps),
            HAS_TAILS=tails is not None,
        )
        weight_grad = parts.sum(dim=0).T.to(weight.dtype)
        if tails is None:
            return x_grad, weight_grad, None, None
        tails_grad = torch.empty_like(tails)
        tile = tile_columns(width, *TAILS_CONFIG)
        tile.launch(
            tails_back,
            (triton.cdiv(len(tails), tile.rows), triton.cdiv(width, tile.columns)),
            *(grad, weight, tails_grad, bounds, len(tails), width),
            TAPS=num_taps,
        )
        return x_grad, weight_grad, tails_grad, None


def aot_cases() -> Sequence[AotCase]:
    """List every configuration at the widths of `k3` and of `tiny`, with tails and four taps."""
    inputs = ("x", "weight", "tails")
    pack = {"bounds": "*i64", "sequences": "*i32"}
    pack |= dict.fromkeys(("num_tokens", "width", "x_stride"), "i32")
    cases: list[AotCase] = []
    for width, x in ((36864, "bf16"), (384, "fp32")):
        forward = dict.fromkeys((*inputs, "y"), f"*{x}") | pack
        backward = (
            dict.fromkeys(("grad", *inputs, "x_grad"), f"*{x}")
            | {"taps_parts": "*fp32"}
            | pack
            | {"tiles_per_program": "i32"}
        )
        label = f"C={width} {x}"
        cases.extend(
            tile_columns(width, *config).aot_case(
                *(convolve, label, forward),
                chosen=config is FORWARD_CONFIGS[0],
                TAPS=4,
                HAS_TAILS=True,
            )
            for config in FORWARD_CONFIGS
        )
        cases.extend(
            tile_columns(width, *config).aot_case(
                *(convolve_back, label, backward),
                chosen=config is BACKWARD_CONFIGS[0],
                TAPS=4,
                TAP_ROWS=4,
                HAS_TAILS=True,
            )
            for config in BACKWARD_CONFIGS
        )
        tail_types = dict.fromkeys(("grad", "weight", "tails_grad"), f"*{x}")
        sizes = {"bounds": "*i64", "num_sequences": "i32", "width": "i32"}
        cases.append(
            tile_columns(width, *TAILS_CONFIG).aot_case(
                *(tails_back, label, tail_types | sizes),
                chosen=True,
                TAPS=4,
            )
        )
    return cases
