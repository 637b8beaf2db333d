"""The short convolution as a sum of shifted products."""

import torch
from jaxtyping import Float
from torch import Tensor


def causal_conv(
    x: Float[Tensor, "S T C"],
    weight: Float[Tensor, "C width"],
    tail: Float[Tensor, "S width-1 C"] | None = None,
) -> Float[Tensor, "S T C"]:
    """See `kernels.short_conv`."""
    width = weight.shape[1]
    num_tokens = x.shape[1]
    if tail is None:
        tail = x.new_zeros(x.shape[0], width - 1, x.shape[2])
    context = torch.cat([tail, x], dim=1)
    output = context[:, :num_tokens] * weight[:, 0]
    for tap in range(1, width):
        output = torch.addcmul(output, context[:, tap : tap + num_tokens], weight[:, tap])
    return output
