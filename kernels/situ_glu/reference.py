"""SiTU-GLU and its derivative, in as few passes over memory as PyTorch allows."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.precision import widen


def bounded_glu(
    gate: Float[Tensor, "*rows F"], up: Float[Tensor, "*rows F"], beta: float, linear_beta: float
) -> Float[Tensor, "*rows F"]:
    """See `kernels.situ_glu`."""
    return SituGlu.apply(widen(gate), widen(up), beta, linear_beta).to(gate.dtype)  # pyright: ignore[reportOptionalMemberAccess]  torch types apply as Any


class SituGlu(torch.autograd.Function):
    """The unit as a function autograd knows.

    With a = tanh(gate / beta), s = sigmoid(gate), b = tanh(up / linear_beta):

        dy/dgate = linear_beta b s ((1 - a^2) + beta a (1 - s))
        dy/dup   = beta a s (1 - b^2)
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        gate: Tensor,
        up: Tensor,
        beta: float,
        linear_beta: float,
    ) -> Tensor:
        """Compute y."""
        bounded_gate = (gate / beta).tanh_()
        switch = gate.sigmoid()
        bounded_up = (up / linear_beta).tanh_()
        ctx.save_for_backward(bounded_gate, switch, bounded_up)
        ctx.beta, ctx.linear_beta = beta, linear_beta
        return (bounded_gate * switch).mul_(bounded_up).mul_(beta * linear_beta)

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        *grads: Tensor,
    ) -> tuple[Tensor, Tensor, None, None]:
        """Apply the formulas of the class."""
        bounded_gate, switch, bounded_up = ctx.saved_tensors
        grad = grads[0] * switch
        slope = torch.addcmul(bounded_gate.new_ones(()), bounded_gate, bounded_gate, value=-1)
        slope.addcmul_(bounded_gate, 1 - switch, value=ctx.beta)
        gate_grad = slope.mul_(bounded_up).mul_(grad).mul_(ctx.linear_beta)
        up_grad = torch.addcmul(bounded_up.new_ones(()), bounded_up, bounded_up, value=-1)
        up_grad.mul_(bounded_gate).mul_(grad).mul_(ctx.beta)
        return gate_grad, up_grad, None, None
