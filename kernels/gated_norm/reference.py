"""The gated norm as it is written."""

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import rms_norm


def gated_rms_norm(
    x: Float[Tensor, "T H V"],
    gate: Float[Tensor, "T H V"],
    weight: Float[Tensor, " V"],
    eps: float,
) -> Float[Tensor, "T H V"]:
    """See `kernels.gated_norm`."""
    return rms_norm(x, weight.shape, weight, eps) * gate.sigmoid()
