"""SiTU-GLU: value, gradient, bound."""

import math

import pytest
import torch

from kernels.situ_glu import situ_glu


def oracle(gate, up, beta, linear_beta):
    """One number after the other."""
    values = [
        beta * math.tanh(g / beta) / (1 + math.exp(-g)) * linear_beta * math.tanh(u / linear_beta)
        for g, u in zip(gate.flatten().tolist(), up.flatten().tolist(), strict=True)
    ]
    return torch.tensor(values, dtype=torch.float64).view_as(gate)


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 5)])
def test_value_and_gradient_follow_the_formula(shape):
    gate = torch.randn(shape, dtype=torch.float64).mul(4).requires_grad_()
    up = torch.randn(shape, dtype=torch.float64).mul(20).requires_grad_()
    torch.testing.assert_close(situ_glu(gate, up, 4.0, 25.0).detach(), oracle(gate, up, 4.0, 25.0))
    assert torch.autograd.gradcheck(lambda g, u: situ_glu(g, u, 4.0, 25.0), (gate, up))


def test_output_is_bounded_and_close_to_swiglu_near_zero():
    large = torch.tensor([1e4, -1e4])
    assert situ_glu(large, large, 4.0, 25.0).abs().max() <= 100.0
    small = torch.tensor([0.05, -0.02])
    silu = torch.nn.functional.silu(small) * small
    torch.testing.assert_close(situ_glu(small, small, 4.0, 25.0), silu, rtol=1e-3, atol=0)


def test_half_precision_computes_in_float32():
    gate, up = (10 * torch.randn(5, 33).bfloat16() for _ in range(2))
    expected = oracle(gate.double(), up.double(), 4.0, 25.0).bfloat16()
    torch.testing.assert_close(situ_glu(gate, up, 4.0, 25.0), expected, rtol=2**-8, atol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gate": torch.zeros(0, 4)}, "gate is empty"),
        ({"gate": torch.zeros(3, 4).long()}, "gate is torch.int64"),
        ({"gate": torch.zeros(4, 3).T}, r"gate has strides \[1, 3\]"),
        ({"up": torch.zeros(3, 5)}, r"up has shape \[3, 5\], expected \[rows0, F\].*F = 4"),
        ({"up": torch.zeros(4)}, r"up has shape \[4\]"),
        ({"up": torch.zeros(3, 4).double()}, "up is torch.float64, gate is torch.float32"),
        ({"up": torch.zeros(3, 4, device="meta")}, "up is on meta, gate is on cpu"),
        ({"beta": 0.0}, "bounds are 0.0 and 25.0, expected positive"),
        ({"linear_beta": -1.0}, "bounds are 4.0 and -1.0, expected positive"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    arguments = {"gate": torch.zeros(3, 4), "up": torch.zeros(3, 4)}
    arguments |= {"beta": 4.0, "linear_beta": 25.0}
    with pytest.raises(ValueError, match=f"^situ_glu: {message}"):
        situ_glu(**arguments | change)
