"""The gated norm against its equation."""

import torch

from kernels.gated_norm import gated_norm


def test_value_and_gradient_follow_the_equation():
    x = torch.randn(4, 2, 6, dtype=torch.float64, requires_grad=True)
    gate = torch.randn(4, 2, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, dtype=torch.float64, requires_grad=True)
    rms = (x.square().mean(dim=-1, keepdim=True) + 1e-3).sqrt()
    torch.testing.assert_close(gated_norm(x, gate, weight, 1e-3), weight * x / rms * gate.sigmoid())
    assert torch.autograd.gradcheck(lambda *args: gated_norm(*args, 1e-3), (x, gate, weight))
