"""The short convolution as a sum of shifted products, and its gradients as the same sums."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def causal_conv(
    x: Float[Tensor, "S T C"],
    weight: Float[Tensor, "C I"],
    tail: Float[Tensor, "S N C"] | None = None,
) -> Float[Tensor, "S T C"]:
    """See `kernels.short_conv`."""
    if tail is None:
        tail = x.new_zeros(x.shape[0], weight.shape[1] - 1, x.shape[2])
    return ShiftedSum.apply(torch.cat([tail, x], dim=1), weight)  # pyright: ignore[reportReturnType]  torch types apply as Any


class ShiftedSum(torch.autograd.Function):
    """y[s, t] = sum_i weight[:, i] context[s, t + i], for context [S, width - 1 + T, C]."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        context: Tensor,
        weight: Tensor,
    ) -> Tensor:
        """Sum the shifted products."""
        taps = weight.T.contiguous()  # a filter's taps lie one channel apart: fast rows
        num_tokens = context.shape[1] - len(taps) + 1
        output = context[:, :num_tokens] * taps[0]
        for i in range(1, len(taps)):
            output.addcmul_(context[:, i : i + num_tokens], taps[i])
        ctx.save_for_backward(context, taps)
        return output

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        *grads: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Send the gradient back along each shift."""
        context, taps = ctx.saved_tensors
        grad = grads[0]
        num_tokens = grad.shape[1]
        context_grad = torch.zeros_like(context)
        taps_grad = torch.empty_like(taps)
        for i in range(len(taps)):
            context_grad[:, i : i + num_tokens].addcmul_(grad, taps[i])
            taps_grad[i] = (grad * context[:, i : i + num_tokens]).sum(dim=(0, 1))
        return context_grad, taps_grad.T
