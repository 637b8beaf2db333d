"""Rows to their experts and back: what surrounds the matrix products of a mixture of experts.

Each of T tokens has chosen A of E experts. Its row is copied once per choice, the copies sorted by
expert, so that every expert finds its rows beside each other:

    rows_n = x_(token of n)                                  `dispatch`
    y_n    = W_(expert of n) rows_n                          `grouped_linear`
    out_t  = sum_a weights_ta y_(row of choice t, a)         `combine`

A caller puts what it likes between two products; `plan_dispatch` says where each row goes. A
token's sum is taken in the order of its choices, whatever the other tokens chose. On a CPU, experts
with few rows are filled up to `kernels.rows.MIN_ROWS`, so that a product gives a row the same bits
whatever the other rows are. N is T A and what fills up.

The products are PyTorch's `grouped_mm`, on a GPU as on a CPU, and one by one for what it does not
take (float64, rows that are no multiple of 16 bytes): no measurement has shown a kernel of ours to
gain over it. Ours are the copies around it (`triton_kernels.py`), where PyTorch passes over memory
twice or more, to gather and then to weigh and sum. The weights of the experts are parameters of
their own, so that each call copies them side by side: E X Y numbers, against the N (X + Y) of the
rows.
"""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from kernels.checks import check_tensors
from kernels.lane import lane_of
from kernels.routed_experts import reference
from kernels.routed_experts.plan import (
    OP,
    DispatchPlan as DispatchPlan,
    plan_dispatch as plan_dispatch,
)


def dispatch(x: Float[Tensor, "T X"], plan: DispatchPlan) -> Float[Tensor, "N X"]:
    """Copy each token's row to the places of its choices, differentiably.

    Args:
        x: One row per token.
        plan: Of the same tokens.

    Raises:
        ValueError: a shape, type, device or stride does not fit.
    """
    check_tensors(OP, {"x": (x, "T X")}, T=plan.row_of_choice.shape[0])
    _check_device(plan, "x", x)
    if lane_of(x) == "triton":
        from kernels.routed_experts.triton_kernels import TritonDispatch

        return TritonDispatch.apply(x, plan.choice_of_row, plan.row_of_choice)  # pyright: ignore[reportReturnType]  torch types apply as Any
    return reference.Dispatch.apply(x, plan.choice_of_row, plan.row_of_choice)  # pyright: ignore[reportReturnType]  torch types apply as Any


def grouped_linear(
    rows: Float[Tensor, "N X"], weights: Sequence[Float[Tensor, "Y X"]], plan: DispatchPlan
) -> Float[Tensor, "N Y"]:
    """Multiply each row with the matrix of its expert, differentiably.

    Args:
        rows: Sorted by expert, as `dispatch` returns them.
        weights: One matrix per expert, all of one shape; they need not be one tensor.
        plan: Says how many rows each expert has.

    Raises:
        ValueError: a shape, type, device or stride does not fit.
    """
    if len(weights) != len(plan.ends):
        raise ValueError(
            f"{OP}: there are {len(weights)} weights, the plan has {len(plan.ends)} experts"
        )
    first = weights[0]
    check_tensors(
        OP, {"rows": (rows, "N X"), "weights[0]": (first, "Y X")}, N=len(plan.choice_of_row)
    )
    _check_device(plan, "rows", rows)
    for index, weight in enumerate(weights):
        if weight.shape != first.shape or weight.dtype != first.dtype:
            raise ValueError(
                f"{OP}: weights[{index}] is {weight.dtype} of shape {list(weight.shape)}, "
                f"weights[0] is {first.dtype} of shape {list(first.shape)}"
            )
    if reference.has_grouped_product(first):
        return reference.multiply_at_once(rows, weights, plan.ends)
    return reference.multiply_one_by_one(rows, weights, plan.counts)


def combine(
    outputs: Float[Tensor, "N X"], weights: Float[Tensor, "T A"], plan: DispatchPlan
) -> Float[Tensor, "T X"]:
    """Sum what each token's experts gave, weighted, differentiably in both.

    Args:
        outputs: Sorted by expert.
        weights: Of each choice.
        plan: Of the same tokens.

    Raises:
        ValueError: a shape, type, device or stride does not fit.
    """
    num_tokens, num_chosen = plan.row_of_choice.shape
    check_tensors(
        OP,
        {"outputs": (outputs, "N X"), "weights": (weights, "T A")},
        N=len(plan.choice_of_row),
        T=num_tokens,
        A=num_chosen,
    )
    _check_device(plan, "outputs", outputs)
    if lane_of(outputs) == "triton":
        from kernels.routed_experts.triton_kernels import TritonCombine

        return TritonCombine.apply(outputs, weights, plan.choice_of_row, plan.row_of_choice)  # pyright: ignore[reportReturnType]  torch types apply as Any
    return reference.Combine.apply(outputs, weights, plan.choice_of_row, plan.row_of_choice)  # pyright: ignore[reportReturnType]  torch types apply as Any


def _check_device(plan: DispatchPlan, name: str, tensor: Tensor) -> None:
    if plan.ends.device != tensor.device:
        raise ValueError(
            f"{OP}: {name} is on {tensor.device}, the plan is on {plan.ends.device}: move one"
        )
