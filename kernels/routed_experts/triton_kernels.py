"""Rows to their experts and back on a GPU, one pass over memory each.

`gather_rows` copies a token's row to its experts. `sum_choices` sums the rows of a token's choices,
weighted: the forward pass of `combine`, and, with weights of 1, the backward pass of `dispatch`.
`spread_grads` is the backward pass of `combine`: a program reads the gradient of one token once for
all its choices. A program writes what no other writes, in a fixed order: nothing is atomic.
"""

# A kernel's arguments are what a launch passes by position, pointers and numbers of the device.
# ruff: noqa: ANN001, ANN201, PLR0917

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.aot import AotCase
from kernels.row_tiles import RowTile, tile_columns

COPY_CONFIGS = ((2048, 1024, 4), (1024, 1024, 4), (4096, 2048, 8))
"""Elements, most columns and warps of a tile of `gather_rows` and `sum_choices` that are worth
trying; the first is launched."""
GRAD_CONFIGS = ((1024, 1024, 4), (2048, 2048, 4), (512, 512, 2))
"""The same of `spread_grads`, which walks over all columns of its rows."""


@triton.jit
def gather_rows(
    x,
    rows_out,
    choice_of_row,
    num_rows,
    width,
    x_stride,
    CHOICES: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Copy to each row the row of its token."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    token = tl.load(choice_of_row + row, row < num_rows, 0) // CHOICES
    mask = (row < num_rows)[:, None] & (column < width)[None, :]
    values = tl.load(x + token[:, None] * x_stride + column[None, :], mask, 0.0)
    tl.store(rows_out + row[:, None] * width + column[None, :], values, mask)


@triton.jit
def sum_choices(
    rows,
    weights,
    total_out,
    row_of_choice,
    num_tokens,
    width,
    CHOICES: tl.constexpr,
    IS_WEIGHTED: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Sum the rows of each token's choices, in their order."""
    token = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    mask = (token < num_tokens)[:, None] & (column < width)[None, :]
    total = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), tl.float32)
    for choice in range(CHOICES):
        place = token * CHOICES + choice
        row = tl.load(row_of_choice + place, token < num_tokens, 0)
        part = tl.load(rows + row[:, None] * width + column[None, :], mask, 0.0).to(tl.float32)
        if IS_WEIGHTED:
            weight = tl.load(weights + place, token < num_tokens, 0.0).to(tl.float32)
            part *= weight[:, None]
        total += part
    places = token[:, None] * width + column[None, :]
    tl.store(total_out + places, total.to(total_out.dtype.element_ty), mask)


@triton.jit
def spread_grads(
    grad,
    rows,
    weights,
    rows_grad,
    weights_grad,
    row_of_choice,
    num_tokens,
    width,
    CHOICES: tl.constexpr,
    WHOLE_CHOICES: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Weigh a token's gradient for each of its choices, and multiply it with what each gave."""
    token = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    choices = tl.arange(0, WHOLE_CHOICES)
    dots = tl.zeros((BLOCK_ROWS, WHOLE_CHOICES), tl.float32)
    for first in range(0, width, BLOCK_COLUMNS):
        column = first + tl.arange(0, BLOCK_COLUMNS)
        mask = (token < num_tokens)[:, None] & (column < width)[None, :]
        pull = tl.load(grad + token[:, None] * width + column[None, :], mask, 0.0).to(tl.float32)
        for choice in range(CHOICES):
            place = token * CHOICES + choice
            row = tl.load(row_of_choice + place, token < num_tokens, 0)
            weight = tl.load(weights + place, token < num_tokens, 0.0).to(tl.float32)
            places = row[:, None] * width + column[None, :]
            spread = pull * weight[:, None]
            tl.store(rows_grad + places, spread.to(rows_grad.dtype.element_ty), mask)
            given = tl.load(rows + places, mask, 0.0).to(tl.float32)
            dot = tl.sum(pull * given, axis=1)
            dots += tl.where(choices[None, :] == choice, tl.expand_dims(dot, 1), 0.0)
    mask = (token < num_tokens)[:, None] & (choices < CHOICES)[None, :]
    places = token[:, None] * CHOICES + choices[None, :]
    tl.store(weights_grad + places, dots.to(weights_grad.dtype.element_ty), mask)


class TritonDispatch(torch.autograd.Function):
    """See `kernels.routed_experts.dispatch`; the arguments are those of `reference.Dispatch`."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        x: Tensor,
        choice_of_row: Tensor,
        row_of_choice: Tensor,
    ) -> Tensor:
        """Launch `gather_rows`."""
        num_rows, width = len(choice_of_row), x.shape[1]
        rows = x.new_empty(num_rows, width)
        tile = tile_columns(width, *COPY_CONFIGS[0])
        tile.launch(
            gather_rows,
            _grid(tile, num_rows, width),
            x,
            rows,
            choice_of_row,
            num_rows,
            width,
            x.stride(0),
            CHOICES=row_of_choice.shape[1],
        )
        ctx.save_for_backward(row_of_choice)
        return rows

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        *grads: Tensor,
    ) -> tuple[Tensor, None, None]:
        """Launch `sum_choices` without weights."""
        (row_of_choice,) = ctx.saved_tensors
        return _sum(grads[0].contiguous(), None, row_of_choice), None, None


class TritonCombine(torch.autograd.Function):
    """See `kernels.routed_experts.combine`; the arguments are those of `reference.Combine`."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        outputs: Tensor,
        weights: Tensor,
        choice_of_row: Tensor,
        row_of_choice: Tensor,
    ) -> Tensor:
        """Launch `sum_choices`."""
        del choice_of_row
        outputs, weights = outputs.contiguous(), weights.contiguous()
        ctx.save_for_backward(outputs, weights, row_of_choice)
        return _sum(outputs, weights, row_of_choice)

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        *grads: Tensor,
    ) -> tuple[Tensor, Tensor, None, None]:
        """Launch `spread_grads`."""
        outputs, weights, row_of_choice = ctx.saved_tensors
        num_tokens, num_chosen = weights.shape
        width = outputs.shape[1]
        outputs_grad, weights_grad = torch.empty_like(outputs), torch.empty_like(weights)
        tile = tile_columns(width, *GRAD_CONFIGS[0])
        tile.launch(
            spread_grads,
            (triton.cdiv(num_tokens, tile.rows),),
            grads[0].contiguous(),
            outputs,
            weights,
            outputs_grad,
            weights_grad,
            row_of_choice,
            num_tokens,
            width,
            CHOICES=num_chosen,
            WHOLE_CHOICES=triton.next_power_of_2(num_chosen),
        )
        return outputs_grad, weights_grad, None, None


def _sum(rows: Tensor, weights: Tensor | None, row_of_choice: Tensor) -> Tensor:
    num_tokens, num_chosen = row_of_choice.shape
    width = rows.shape[1]
    total = rows.new_empty(num_tokens, width)
    tile = tile_columns(width, *COPY_CONFIGS[0])
    tile.launch(
        sum_choices,
        _grid(tile, num_tokens, width),
        rows,
        rows if weights is None else weights,  # not read without weights
        total,
        row_of_choice,
        num_tokens,
        width,
        CHOICES=num_chosen,
        IS_WEIGHTED=weights is not None,
    )
    return total


def _grid(tile: RowTile, num_rows: int, width: int) -> tuple[int, int]:
    return triton.cdiv(num_rows, tile.rows), triton.cdiv(width, tile.columns)


def aot_cases() -> Sequence[AotCase]:
    """List every configuration at the widths and choices of `k3` and of `tiny`."""
    return [
        case
        for width, num_chosen, x in ((3584, 16, "bf16"), (64, 2, "fp32"))
        for case in _cases(width, num_chosen, x)
    ]


def _cases(width: int, num_chosen: int, x: str) -> Sequence[AotCase]:
    label = f"X={width} A={num_chosen} {x}"
    whole = triton.next_power_of_2(num_chosen)
    kernels = (
        (gather_rows, ("x", "rows_out"), COPY_CONFIGS, {}),
        (sum_choices, ("rows", "weights", "total_out"), COPY_CONFIGS, {"IS_WEIGHTED": True}),
        (
            spread_grads,
            ("grad", "rows", "weights", "rows_grad", "weights_grad"),
            GRAD_CONFIGS,
            {"WHOLE_CHOICES": whole},
        ),
    )
    cases: list[AotCase] = []
    for kernel, tensors, configs, constants in kernels:
        signature = dict.fromkeys(tensors, f"*{x}")
        signature |= dict.fromkeys(("choice_of_row", "row_of_choice"), "*i64")
        signature |= dict.fromkeys(("num_rows", "num_tokens", "width", "x_stride"), "i32")
        signature = {k: v for k, v in signature.items() if k in kernel.arg_names}
        cases += [
            tile_columns(width, *config).aot_case(
                kernel,
                label,
                signature,
                chosen=config is configs[0],
                CHOICES=num_chosen,
                **constants,
            )
            for config in configs
        ]
    return cases
