"""The gated norm, number by number."""

import math

import pytest
import torch

from kernels.gated_norm import gated_norm


def make_inputs(*shape):
    torch.manual_seed(0)
    x, gate = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(2))
    return x, gate, torch.randn(shape[-1], dtype=torch.float64, requires_grad=True)


def oracle(x, gate, weight, eps):
    """One number after the other."""
    output = torch.zeros(x.shape, dtype=torch.float64)
    for t, rows in enumerate(x.tolist()):
        for h, values in enumerate(rows):
            rms = math.sqrt(sum(value**2 for value in values) / len(values) + eps)
            for c, value in enumerate(values):
                switch = 1 / (1 + math.exp(-gate[t, h, c].item()))
                output[t, h, c] = switch * weight[c].item() * value / rms
    return output


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 2, 5)])
def test_norm_then_gate(shape):
    inputs = make_inputs(*shape)
    torch.testing.assert_close(gated_norm(*inputs, 1e-3).detach(), oracle(*inputs, 1e-3))


def test_gradients_are_finite_differences():
    assert torch.autograd.gradcheck(lambda *x: gated_norm(*x, 1e-3), make_inputs(3, 2, 5))


def test_half_precision_computes_in_float32():
    inputs = [x.detach().bfloat16() for x in make_inputs(4, 2, 16)]
    expected = oracle(*(x.double() for x in inputs), 1e-5)
    torch.testing.assert_close(gated_norm(*inputs, 1e-5), expected.bfloat16(), rtol=2**-8, atol=0)


def test_a_head_of_zeros_stays_finite():
    zeros = torch.zeros(2, 1, 4, requires_grad=True)
    output = gated_norm(zeros, torch.zeros(2, 1, 4), torch.ones(4), 1e-5)
    output.sum().backward()
    assert not output.any()
    assert zeros.grad.isfinite().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(3, 4)}, r"x has shape \[3, 4\], expected \[T, H, V\]"),
        ({"x": torch.zeros(3, 0, 4)}, "x is empty"),
        ({"x": torch.zeros(3, 2, 4).long()}, "x is torch.int64"),
        ({"gate": torch.zeros(3, 1, 4)}, r"gate has shape \[3, 1, 4\].*H = 2"),
        ({"gate": torch.zeros(3, 2, 4).double()}, "gate is torch.float64, x is torch.float32"),
        ({"gate": torch.zeros(3, 4, 2).transpose(1, 2)}, "gate has strides"),
        ({"weight": torch.zeros(5)}, r"weight has shape \[5\], expected \[V\].*V = 4"),
        ({"weight": torch.zeros(4, device="meta")}, "weight is on meta, x is on cpu"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    arguments = {"x": torch.zeros(3, 2, 4), "gate": torch.zeros(3, 2, 4), "weight": torch.zeros(4)}
    with pytest.raises(ValueError, match=f"^gated_norm: {message}"):
        gated_norm(**arguments | change, eps=1e-5)
