"""Where each copy of a token goes: the choices sorted by expert.

On a CPU the sort is NumPy's (radix sort of small integers, a few microseconds), for a plan is made
in every layer of every decoded token. On a GPU it is PyTorch's, and the host does not wait for it.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from kernels.rows import MIN_ROWS

OP = "routed_experts"


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchPlan:
    """Rows sorted by expert; those of one expert in the order of the tokens."""

    choice_of_row: Int[Tensor, " N"]
    """For each row, which of the T A choices it serves, counted t A + a; -1 if it fills up."""
    row_of_choice: Int[Tensor, "T A"]
    """For each choice, its row: the inverse."""
    ends: Int[Tensor, " E"]
    """End of each expert's rows."""

    @property
    def counts(self) -> list[int]:
        """Return how many rows each expert has."""
        return self.ends.diff(prepend=self.ends.new_zeros(1)).tolist()


def plan_dispatch(chosen: Int[Tensor, "T A"], num_experts: int) -> DispatchPlan:
    """Give each choice a row.

    Args:
        chosen: Expert of each choice, below `num_experts`.
        num_experts: E.

    Raises:
        ValueError: the choices are not integers [T, A], there are none, or one is no expert. On a
            GPU the device says the last, for asking would stop the host.
    """
    if chosen.dim() != 2 or chosen.numel() == 0:
        raise ValueError(
            f"{OP}: chosen has shape {list(chosen.shape)}, expected [T, A] with at least one choice"
        )
    if chosen.dtype not in (torch.int16, torch.int32, torch.int64):
        raise ValueError(f"{OP}: chosen is {chosen.dtype}, expected int16, int32 or int64")
    return (_plan_on_cpu if chosen.device.type == "cpu" else _plan_on_gpu)(chosen, num_experts)


def _plan_on_cpu(chosen: Tensor, num_experts: int) -> DispatchPlan:
    """Sort, and fill up each expert that has rows to at least MIN_ROWS."""
    experts = chosen.numpy().ravel()
    lowest, highest = experts.min(), experts.max()
    if lowest < 0 or highest >= num_experts:
        raise ValueError(
            f"{OP}: chosen runs from {lowest} to {highest}, there are experts 0 to "
            f"{num_experts - 1}"
        )
    order = experts.astype(np.int16).argsort(kind="stable")
    counts = np.bincount(experts, minlength=num_experts)
    filled = np.where(counts > 0, np.maximum(counts, MIN_ROWS), 0)
    ends = filled.cumsum()
    shift = (ends - filled) - (counts.cumsum() - counts)
    rows = np.arange(len(experts)) + shift[experts[order]]
    choice_of_row = np.full(ends[-1], -1)
    choice_of_row[rows] = order
    row_of_choice = np.empty(chosen.shape, np.int64)
    row_of_choice.ravel()[order] = rows
    return DispatchPlan(
        choice_of_row=torch.from_numpy(choice_of_row),
        row_of_choice=torch.from_numpy(row_of_choice),
        ends=torch.from_numpy(ends.astype(np.int32)),
    )


def _plan_on_gpu(chosen: Tensor, num_experts: int) -> DispatchPlan:
    """Sort; scatter_add is where the device refuses what is no expert."""
    experts = chosen.flatten().long()
    counts = experts.new_zeros(num_experts).scatter_add_(0, experts, torch.ones_like(experts))
    order = experts.argsort(stable=True)
    row_of_choice = torch.empty_like(order)
    row_of_choice[order] = torch.arange(len(order), device=order.device)
    return DispatchPlan(
        choice_of_row=order,
        row_of_choice=row_of_choice.view(chosen.shape),
        ends=counts.cumsum(0).to(torch.int32),
    )
