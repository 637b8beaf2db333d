"""SiTU-GLU: value, gradient, bound."""

import torch

from kernels.situ_glu import situ_glu


def test_value_and_gradient_follow_the_formula():
    gate = torch.randn(3, 7, dtype=torch.float64).mul(4).requires_grad_()
    up = torch.randn(3, 7, dtype=torch.float64).mul(20).requires_grad_()
    expected = 4 * (gate / 4).tanh() * gate.sigmoid() * 25 * (up / 25).tanh()
    torch.testing.assert_close(situ_glu(gate, up, 4.0, 25.0), expected)
    assert torch.autograd.gradcheck(lambda g, u: situ_glu(g, u, 4.0, 25.0), (gate, up))


def test_output_is_bounded_and_close_to_swiglu_near_zero():
    large = torch.tensor([1e4, -1e4])
    assert situ_glu(large, large, 4.0, 25.0).abs().max() <= 100.0
    small = torch.tensor([0.05, -0.02])
    silu = torch.nn.functional.silu(small) * small
    torch.testing.assert_close(situ_glu(small, small, 4.0, 25.0), silu, rtol=1e-3, atol=0)
