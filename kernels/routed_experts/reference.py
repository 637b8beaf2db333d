"""Dispatch, products and combination in PyTorch, with their gradients.

All sums are gathers followed by sums in a fixed order: nothing is scattered.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import grouped_mm

from kernels.precision import widen

ALIGNMENT = 16
"""Bytes to which `grouped_mm` wants the rows of its matrices aligned."""


class Dispatch(torch.autograd.Function):
    """See `kernels.routed_experts.dispatch`; the gradient of a row is the sum over its copies."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        x: Tensor,
        choice_of_row: Tensor,
        row_of_choice: Tensor,
    ) -> Tensor:
        """Gather."""
        ctx.save_for_backward(row_of_choice)
        return x.index_select(0, choice_of_row.clamp(min=0) // row_of_choice.shape[1])

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        *grads: Tensor,
    ) -> tuple[Tensor, None, None]:
        """Sum over choices."""
        (row_of_choice,) = ctx.saved_tensors
        return sum_choices(grads[0], None, row_of_choice), None, None


class Combine(torch.autograd.Function):
    """See `kernels.routed_experts.combine`.

    doutputs_n = weights_ta dout_t and dweights_ta = dout_t . outputs_n, for the row n of choice
    (t, a).
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        outputs: Tensor,
        weights: Tensor,
        choice_of_row: Tensor,
        row_of_choice: Tensor,
    ) -> Tensor:
        """Sum over choices."""
        ctx.save_for_backward(outputs, weights, choice_of_row, row_of_choice)
        return sum_choices(outputs, weights, row_of_choice)

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        *grads: Tensor,
    ) -> tuple[Tensor, Tensor, None, None]:
        """Apply the formulas of the class."""
        outputs, weights, choice_of_row, row_of_choice = ctx.saved_tensors
        choices = choice_of_row.clamp(min=0)
        pull = widen(grads[0].index_select(0, choices // weights.shape[1]))
        weight_of_row = widen(weights).flatten().index_select(0, choices)
        weight_of_row *= choice_of_row >= 0
        weight_grad = (pull * outputs).sum(dim=1)[row_of_choice].to(weights.dtype)
        return pull.mul_(weight_of_row[:, None]).to(outputs.dtype), weight_grad, None, None


def sum_choices(rows: Tensor, weights: Tensor | None, row_of_choice: Tensor) -> Tensor:
    """Sum the rows of each token's choices, one choice after the other: [N, X] -> [T, X].

    Args:
        rows: One per choice.
        weights: Of the choices [T, A]; all 1 if None.
        row_of_choice: Where each choice's row is [T, A].
    """
    total = None
    for choice, places in enumerate(row_of_choice.unbind(1)):
        part = widen(rows.index_select(0, places))
        if weights is not None:
            part.mul_(widen(weights[:, choice, None]))
        total = part if total is None else total.add_(part)
    assert total is not None  # at least one choice
    return total.to(rows.dtype)


def has_grouped_product(weight: Tensor) -> bool:
    """Whether PyTorch's `grouped_mm` takes matrices [Y, X] of this kind, and rows that fit them."""
    return weight.dtype in (torch.float32, torch.bfloat16, torch.float16) and all(
        size * weight.element_size() % ALIGNMENT == 0 for size in weight.shape
    )


def multiply_at_once(rows: Tensor, weights: Sequence[Tensor], ends: Tensor) -> Tensor:
    """Multiply all groups in one call: [N, X] and E matrices [Y, X] -> [N, Y]."""
    return grouped_mm(rows, torch.stack(list(weights)).transpose(1, 2), offs=ends)


def multiply_one_by_one(rows: Tensor, weights: Sequence[Tensor], counts: list[int]) -> Tensor:
    """Do the same with a product per expert."""
    parts = zip(rows.split(counts), weights, strict=True)
    return torch.cat([part @ weight.t() for part, weight in parts])
