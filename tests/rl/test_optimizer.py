"""The optimizer: its schedule, and its bound on the gradient."""

import pytest
import torch
from torch import nn

from rl.config import LearnerSection
from rl.optimizer import Optimizer


def with_gradient(value):
    parameter = nn.Parameter(torch.zeros(4))
    parameter.grad = torch.full((4,), value)
    return parameter


def test_the_rate_rises_linearly_and_stays():
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = Optimizer([parameter], LearnerSection(learning_rate=0.4, warmup_steps=4))
    rates = []
    for _ in range(6):
        rates.append(optimizer.learning_rate)
        parameter.grad = torch.ones(1)
        optimizer.step()
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])


def test_the_norm_before_clipping_is_returned_and_the_gradient_cleared():
    parameter = with_gradient(3.0)
    optimizer = Optimizer([parameter], LearnerSection(max_grad_norm=1.0))
    assert optimizer.step() == pytest.approx(6.0)
    assert parameter.grad is None


def test_a_gradient_that_is_not_finite_leaves_the_weights():
    parameter = with_gradient(float("nan"))
    optimizer = Optimizer([parameter], LearnerSection())
    with pytest.raises(ArithmeticError, match="gradient norm is nan"):
        optimizer.step()
    assert parameter.tolist() == [0.0] * 4
