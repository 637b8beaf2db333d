"""Causal depthwise convolution of small width, over a padded batch, with an optional left context.

    y[s, t, c] = sum_{i=0}^{width-1} weight[c, i] x[s, t - (width - 1) + i, c]

Inputs before the first token come from `tail` (the last width - 1 inputs of what was computed
before), or are zero.
"""

from jaxtyping import Float
from torch import Tensor

from kernels.short_conv.reference import causal_conv


def short_conv(
    x: Float[Tensor, "S T C"],
    weight: Float[Tensor, "C I"],
    tail: Float[Tensor, "S N C"] | None = None,
) -> Float[Tensor, "S T C"]:
    """Convolve each channel of each sequence with its own filter.

    Args:
        x: Inputs.
        weight: One filter of I taps per channel; the last tap multiplies the current token.
        tail: The N = I - 1 inputs before the first token; zeros if None.
    """
    return causal_conv(x, weight, tail)
