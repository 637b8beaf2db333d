"""The kernels around the experts' products against the reference in float64."""

import pytest
import torch

from kernels.routed_experts import plan_dispatch, reference

pytestmark = pytest.mark.usefixtures("nan_memory")
NUM_EXPERTS = 7
SHAPES = [(1, 1, 1), (3, 2, 64), (33, 3, 70), (5, 5, 1100)]
"""Tokens, choices, width."""


def plan_of(num_tokens, num_chosen, device):
    from kernels.routed_experts.plan import _plan_on_gpu

    torch.manual_seed(0)
    chosen = torch.rand(num_tokens, NUM_EXPERTS).topk(num_chosen, dim=1).indices
    plan = _plan_on_gpu(chosen.to(device), NUM_EXPERTS)  # which fills nothing up
    return plan.choice_of_row, plan.row_of_choice


def compare(ours, wanted, inputs, plan, tolerance=2e-6):
    results = []
    for function, dtype in ((ours, inputs[0].dtype), (wanted, torch.float64)):
        leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
        output = function.apply(*leaves, *plan)
        torch.manual_seed(1)
        upstream = torch.randn(output.shape).to(inputs[0]).to(dtype)
        results.append((output.detach(), *torch.autograd.grad(output, leaves, upstream)))
    for actual, expected in zip(*results, strict=True):
        assert actual.dtype == inputs[0].dtype
        torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("num_tokens", "num_chosen", "width"), SHAPES)
def test_dispatch_equals_the_reference(device, num_tokens, num_chosen, width):
    from kernels.routed_experts.triton_kernels import TritonDispatch

    x = torch.randn(num_tokens, width, device=device)
    compare(TritonDispatch, reference.Dispatch, [x], plan_of(num_tokens, num_chosen, device))


@pytest.mark.parametrize(("num_tokens", "num_chosen", "width"), SHAPES)
def test_combination_equals_the_reference(device, num_tokens, num_chosen, width):
    from kernels.routed_experts.triton_kernels import TritonCombine

    outputs = torch.randn(num_tokens * num_chosen, width, device=device)
    weights = torch.rand(num_tokens, num_chosen, device=device)
    plan = plan_of(num_tokens, num_chosen, device)
    compare(TritonCombine, reference.Combine, [outputs, weights], plan, 2e-5)


def test_bfloat16_is_rounded_once(device):
    from kernels.routed_experts.triton_kernels import TritonCombine, TritonDispatch

    plan = plan_of(20, 3, device)
    x = torch.randn(20, 48, device=device).bfloat16()
    outputs = torch.randn(60, 48, device=device).bfloat16()
    weights = torch.rand(20, 3, device=device).bfloat16()
    compare(TritonDispatch, reference.Dispatch, [x], plan, 2**-6)
    compare(TritonCombine, reference.Combine, [outputs, weights], plan, 2**-6)


def test_rows_that_lie_apart_are_read_where_they_lie(device):
    from kernels.routed_experts.triton_kernels import TritonDispatch

    both = torch.randn(9, 80, device=device)
    plan = plan_of(9, 2, device)
    actual = TritonDispatch.apply(both[:, :40], *plan)
    assert torch.equal(actual, both[:, :40].index_select(0, plan[0] // 2))


def test_plans_of_both_devices_agree_where_nothing_fills_up():
    from kernels.routed_experts.plan import _plan_on_gpu

    torch.manual_seed(0)
    chosen = torch.rand(400, NUM_EXPERTS).topk(3, dim=1).indices
    cpu, gpu = plan_dispatch(chosen, NUM_EXPERTS), _plan_on_gpu(chosen, NUM_EXPERTS)
    for name in ("choice_of_row", "row_of_choice", "ends"):
        assert torch.equal(getattr(cpu, name), getattr(gpu, name))
