"""The kernels of the attention residual against its reference in float64."""

import pytest
import torch

from kernels import row_tiles
from kernels.attention_residual.reference import mix_over_depth

pytestmark = pytest.mark.usefixtures("nan_memory")
EPS = 1e-5


def run(function, candidates, query, norm_weight, upstream):
    inputs = [x.detach().requires_grad_() for x in (query, norm_weight, *candidates)]
    output = function(inputs[2:], *inputs[:2], EPS)
    return output.detach(), *torch.autograd.grad(output, inputs, upstream)


def make_inputs(depth, num_tokens, width, device):
    torch.manual_seed(depth)
    candidates = [3 * torch.randn(num_tokens, width, device=device) for _ in range(depth)]
    query, norm_weight = (torch.randn(width, device=device) for _ in range(2))
    return candidates, query, norm_weight, torch.randn(num_tokens, width, device=device)


def widened(candidates, *rest):
    return [x.double() for x in candidates], *(x.double() for x in rest)


@pytest.mark.parametrize(
    ("depth", "num_tokens", "width"),
    [(1, 3, 8), (2, 1, 1), (3, 33, 128), (4, 5, 130), (9, 7, 48), (12, 2, 24)],
)
def test_output_and_gradients_equal_the_reference(depth, num_tokens, width, device):
    from kernels.attention_residual.triton_kernels import attention_residual_triton

    inputs = make_inputs(depth, num_tokens, width, device)
    expected = run(mix_over_depth, *widened(*inputs))
    for actual, wanted in zip(run(attention_residual_triton, *inputs), expected, strict=True):
        torch.testing.assert_close(actual.double(), wanted, rtol=1e-4, atol=1e-4)


def test_programs_that_take_several_tiles_each_count_every_token_once(device, monkeypatch):
    from kernels.attention_residual.triton_kernels import attention_residual_triton

    monkeypatch.setattr(row_tiles, "SUMMING_PROGRAMS", 2)
    inputs = make_inputs(3, 200, 120, device)
    expected = run(mix_over_depth, *widened(*inputs))
    for actual, wanted in zip(run(attention_residual_triton, *inputs), expected, strict=True):
        torch.testing.assert_close(actual.double(), wanted, rtol=1e-4, atol=2e-4)


def test_scores_too_large_for_an_exponential_are_mixed_all_the_same(device):
    from kernels.attention_residual.triton_kernels import attention_residual_triton

    candidates, query, norm_weight, _ = make_inputs(3, 5, 16, device)
    query = 1000 * query
    expected = mix_over_depth(*widened(candidates, query, norm_weight), EPS)
    actual = attention_residual_triton(candidates, query, norm_weight, EPS)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-3, atol=1e-3)


def test_candidates_need_not_lie_together(device):
    from kernels.attention_residual.triton_kernels import attention_residual_triton

    bank = torch.randn(6, 3, 20, device=device)
    candidates, query = list(bank.unbind(1)), torch.randn(20, device=device)
    expected = mix_over_depth(*widened(candidates, query, query), EPS)
    actual = attention_residual_triton(candidates, query, query, EPS)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5)


def test_bfloat16_inputs_give_bfloat16_gradients_close_to_the_exact_ones(device):
    from kernels.attention_residual.triton_kernels import attention_residual_triton

    candidates, *rest = make_inputs(4, 9, 64, device)
    inputs = [x.bfloat16() for x in candidates], *(x.bfloat16() for x in rest)
    expected = run(mix_over_depth, *widened(*inputs))
    for actual, wanted in zip(run(attention_residual_triton, *inputs), expected, strict=True):
        assert actual.dtype == torch.bfloat16
        # The interpreter cuts off what a GPU rounds.
        torch.testing.assert_close(actual.double(), wanted, rtol=2**-7, atol=1e-4)


def test_rows_longer_than_a_program_holds_are_refused(device):
    from kernels.attention_residual.triton_kernels import MAX_WIDTH, attention_residual_triton

    row = torch.zeros(1, MAX_WIDTH + 1, device=device)
    with pytest.raises(ValueError, match="attention_residual: D = 16385"):
        attention_residual_triton([row], row[0], row[0], EPS)
