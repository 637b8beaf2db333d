"""Causal depthwise convolution of small width over packed sequences, with an optional left context.

For token t of a sequence that begins at token b of the pack, and I taps per channel c:

    y[t, c] = sum_{i=0}^{I-1} weight[c, i] x[t - (I - 1) + i, c]

Inputs before token b are the sequence's tail: the last I - 1 inputs of what was computed before,
or zeros. Nothing of a neighbour in the pack is read.
"""

from jaxtyping import Float, Int
from torch import Tensor

from kernels.checks import check_cu_seqlens, check_tensors
from kernels.lane import lane_of
from kernels.short_conv.reference import causal_conv, shift_tails


def short_conv(
    x: Float[Tensor, "T C"],
    weight: Float[Tensor, "C I"],
    cu_seqlens: Int[Tensor, " S1"],
    tails: Float[Tensor, "S N C"] | None = None,
) -> Float[Tensor, "T C"]:
    """Convolve each channel of each sequence with its own filter, differentiably.

    Args:
        x: Inputs of all sequences, behind each other.
        weight: One filter of I >= 2 taps per channel; the last tap multiplies the current token.
        cu_seqlens: Start of each sequence, and T at the end. On the CPU it is read for free, on a
            GPU reading it waits for the device.
        tails: The N = I - 1 inputs before each sequence's first token; zeros if None.

    Raises:
        ValueError: shapes, dtypes, devices or bounds do not fit together.
    """
    bounds = _check(x, weight.shape[-1], cu_seqlens, tails, weight)
    if lane_of(x) == "triton":
        from kernels.short_conv.triton_kernels import short_conv_triton

        return short_conv_triton(x, weight, cu_seqlens, tails)
    return causal_conv(x, weight, bounds, tails)


def last_inputs(
    x: Float[Tensor, "T C"],
    cu_seqlens: Int[Tensor, " S1"],
    tails: Float[Tensor, "S N C"] | None,
    width: int,
) -> Float[Tensor, "S N C"]:
    """Return the tails with which the sequences may be continued later.

    Args:
        x: Inputs of all sequences, as `short_conv` took them.
        cu_seqlens: Start of each sequence, and T at the end.
        tails: The tails that `short_conv` took; a sequence of fewer than N tokens keeps part of its
            own.
        width: I, taps of the filters; N = I - 1.

    Raises:
        ValueError: shapes, dtypes, devices or bounds do not fit together.
    """
    bounds = _check(x, width, cu_seqlens, tails)
    return shift_tails(x, bounds, tails, width - 1)


def _check(
    x: Tensor, width: int, cu_seqlens: Tensor, tails: Tensor | None, weight: Tensor | None = None
) -> list[int]:
    """Check the tensors of a call; return the bounds of its sequences."""
    tensors = {"x": (x, "T C"), "weight": (weight, "C I"), "tails": (tails, "S I-1 C")}
    sizes = check_tensors("short_conv", tensors, S=cu_seqlens.numel() - 1, I=width)
    if width < 2:
        raise ValueError(f"short_conv: a filter of {width} taps reaches no earlier token")
    return check_cu_seqlens("short_conv", cu_seqlens, sizes["T"])
