"""Dispatch, products and combination against a loop over tokens in float64, gradients included."""

import pytest
import torch

from kernels.routed_experts import combine, dispatch, grouped_linear, plan_dispatch
from kernels.routed_experts.reference import has_grouped_product
from kernels.rows import MIN_ROWS

NUM_EXPERTS = 6


def choices(num_tokens, num_chosen=2, seed=0):
    draw = torch.Generator().manual_seed(seed)
    # The last expert is never chosen.
    scores = torch.rand(num_tokens, NUM_EXPERTS - 1, generator=draw)
    return scores.topk(num_chosen, dim=1).indices


def tensors(num_tokens, num_chosen=2, width=5, dtype=torch.float64):
    draw = torch.Generator().manual_seed(1)
    shapes = ((num_tokens, width), (num_tokens, num_chosen), (NUM_EXPERTS, width + 2, width))
    made = (torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype) for shape in shapes)
    return [x.requires_grad_() for x in made]


def routed(x, weights, matrices, chosen):
    plan = plan_dispatch(chosen, len(matrices))
    return combine(grouped_linear(dispatch(x, plan), matrices.unbind(), plan), weights, plan)


def routed_by_loop(x, weights, matrices, chosen):
    rows = []
    for t in range(len(x)):
        row = 0.0
        for a, expert in enumerate(chosen[t].tolist()):
            row = row + weights[t, a] * (matrices[expert] @ x[t])
        rows.append(row)
    return torch.stack(rows)


@pytest.mark.parametrize("num_chosen", [1, 2, 5])
@pytest.mark.parametrize("num_tokens", [1, 3, 16, 70])
def test_a_row_is_the_weighted_sum_of_its_experts(num_tokens, num_chosen):
    inputs = tensors(num_tokens, num_chosen)
    chosen = choices(num_tokens, num_chosen)
    actual, expected = (f(*inputs, chosen) for f in (routed, routed_by_loop))
    torch.testing.assert_close(actual, expected)
    upstream = torch.randn_like(expected)
    gradients = [torch.autograd.grad(y, inputs, upstream) for y in (actual, expected)]
    torch.testing.assert_close(*gradients)


def test_gradients_equal_finite_differences():
    chosen = choices(4)
    assert torch.autograd.gradcheck(lambda *x: routed(*x, chosen), tensors(4))


def test_one_grouped_product_equals_a_product_per_expert():
    chosen, inputs = choices(40), tensors(40, width=6, dtype=torch.float32)
    x, weights, matrices = (torch.randn(s) for s in ((40, 8), (40, 2), (NUM_EXPERTS, 12, 8)))
    assert has_grouped_product(matrices[0])
    assert not has_grouped_product(inputs[2][0])  # six floats are no multiple of sixteen bytes
    for case in (inputs, [x, weights, matrices]):
        expected = routed_by_loop(*(y.double() for y in case), chosen)
        torch.testing.assert_close(routed(*case, chosen).double(), expected, rtol=1e-5, atol=1e-5)


def test_half_precision_sums_in_float32():
    x, weights = torch.ones(4, 3).bfloat16(), torch.full((4, 5), 1 / 256).bfloat16()
    weights[:, 0] = 1.0  # 1 + 1/256 is 1 in bfloat16, 1 + 4/256 is not
    plan = plan_dispatch(choices(4, 5), NUM_EXPERTS)
    assert (combine(dispatch(x, plan), weights, plan) == 1 + 4 / 256).all()


def test_rows_of_an_expert_are_together_in_the_order_of_the_tokens():
    chosen = choices(70)
    plan = plan_dispatch(chosen, NUM_EXPERTS)
    row = 0
    for expert, count in enumerate(plan.counts):
        served = plan.choice_of_row[row : row + count]
        expected = (chosen.flatten() == expert).nonzero().squeeze(1)
        assert torch.equal(served[: len(expected)], expected)
        assert (served[len(expected) :] == -1).all()
        assert count == (max(len(expected), MIN_ROWS) if len(expected) else 0)
        row += count
    assert row == len(plan.choice_of_row)
    back = plan.choice_of_row[plan.row_of_choice.flatten()]
    assert torch.equal(back, torch.arange(chosen.numel()))


def test_a_token_has_the_same_bits_alone_and_in_any_batch():
    chosen = choices(70)
    x, weights = torch.randn(70, 64), torch.rand(70, 2)
    matrices = torch.randn(NUM_EXPERTS, 96, 64)
    whole = routed(x, weights, matrices, chosen)
    for size in (1, 2, 5, 16, 33):
        parts = zip(*(y.split(size) for y in (x, weights, chosen)), strict=True)
        assert torch.equal(torch.cat([routed(a, b, matrices, c) for a, b, c in parts]), whole)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32])
def test_recorded_choices_are_narrow_integers(dtype):
    plan = plan_dispatch(choices(9).to(dtype), NUM_EXPERTS)
    assert torch.equal(plan.row_of_choice, plan_dispatch(choices(9), NUM_EXPERTS).row_of_choice)


@pytest.mark.parametrize(
    ("chosen", "complaint"),
    [
        (torch.tensor([0, 1]), r"chosen has shape \[2\], expected \[T, A\]"),
        (torch.zeros(0, 2, dtype=torch.long), "at least one choice"),
        (torch.zeros(2, 2), "chosen is torch.float32"),
        (torch.tensor([[0, 6]]), "chosen runs from 0 to 6, there are experts 0 to 5"),
        (torch.tensor([[-1, 2]]), "chosen runs from -1 to 2"),
    ],
)
def test_choices_that_are_none_are_refused(chosen, complaint):
    with pytest.raises(ValueError, match=f"^routed_experts: .*{complaint}"):
        plan_dispatch(chosen, NUM_EXPERTS)


PLAN = plan_dispatch(choices(20), NUM_EXPERTS)
NUM_ROWS = len(PLAN.choice_of_row)
ROWS = torch.randn(NUM_ROWS, 4)


@pytest.mark.parametrize(
    ("x", "complaint"),
    [
        (torch.randn(20), r"x has shape \[20\], expected \[T, X\]"),
        (torch.randn(19, 4), r"x has shape \[19, 4\], expected \[T, X\] with T = 20"),
        (torch.randn(20, 0), "x is empty"),
        (torch.ones(20, 4, dtype=torch.long), "x is torch.int64"),
        (torch.randn(4, 20).T, "x has strides"),
        (torch.randn(20, 4, device="meta"), "x is on meta, the plan is on cpu"),
    ],
)
def test_rows_that_do_not_fit_the_plan_are_refused(x, complaint):
    with pytest.raises(ValueError, match=f"^routed_experts: {complaint}"):
        dispatch(x, PLAN)


@pytest.mark.parametrize(
    ("rows", "weights", "complaint"),
    [
        (ROWS[1:], [torch.randn(3, 4)] * 6, r"rows has shape .* with N"),
        (ROWS, [torch.randn(3, 4)] * 5, "there are 5 weights, the plan has 6 experts"),
        (ROWS, [torch.randn(3, 5)] * 6, r"weights\[0\] has shape \[3, 5\].*X = 4"),
        (ROWS, [torch.randn(3, 4)] * 5 + [torch.randn(2, 4)], r"weights\[5\] .* \[2, 4\]"),
        (ROWS, [torch.randn(3, 4)] * 5 + [torch.randn(3, 4).double()], r"weights\[5\] .*float64"),
        (ROWS.double(), [torch.randn(3, 4)] * 6, r"weights\[0\] is torch.float32, rows is"),
        (ROWS.to("meta"), [torch.randn(3, 4, device="meta")] * 6, "rows is on meta, the plan"),
        (ROWS.T.contiguous().T, [torch.randn(3, 4)] * 6, "rows has strides"),
    ],
)
def test_matrices_that_do_not_fit_the_rows_are_refused(rows, weights, complaint):
    with pytest.raises(ValueError, match=f"^routed_experts: {complaint}"):
        grouped_linear(rows, weights, PLAN)


@pytest.mark.parametrize(
    ("outputs", "weights", "complaint"),
    [
        (ROWS[1:], torch.rand(20, 2), "outputs has shape .* with N"),
        (ROWS, torch.rand(20, 3), r"weights has shape \[20, 3\], .*A = 2"),
        (ROWS, torch.rand(20, 2).double(), "weights is torch.float64, outputs is torch.float32"),
        (ROWS, torch.rand(2, 20).T, "weights has strides"),
        (ROWS.to("meta"), torch.rand(20, 2, device="meta"), "outputs is on meta, the plan"),
    ],
)
def test_outputs_that_do_not_fit_the_plan_are_refused(outputs, weights, complaint):
    with pytest.raises(ValueError, match=f"^routed_experts: {complaint}"):
        combine(outputs, weights, PLAN)
