"""The gated norm as it is written."""

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import rms_norm

from kernels.precision import widen


def gated_rms_norm(
    x: Float[Tensor, "T H V"],
    gate: Float[Tensor, "T H V"],
    weight: Float[Tensor, " V"],
    eps: float,
) -> Float[Tensor, "T H V"]:
    """See `kernels.gated_norm`."""
    normed = rms_norm(widen(x), weight.shape, widen(weight), eps)
    return (normed * widen(gate).sigmoid()).to(x.dtype)
