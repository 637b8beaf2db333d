"""RMS norm over the last dimension, times a sigmoid gate.

y = sigmoid(gate) * weight * x / sqrt(mean(x^2) + eps)
"""

from jaxtyping import Float
from torch import Tensor

from kernels.gated_norm.reference import gated_rms_norm


def gated_norm(
    x: Float[Tensor, "T H V"],
    gate: Float[Tensor, "T H V"],
    weight: Float[Tensor, " V"],
    eps: float,
) -> Float[Tensor, "T H V"]:
    """Normalise each head and gate each of its channels.

    Args:
        x: Heads' outputs.
        gate: Gate logits.
        weight: Scale per channel, shared by the heads.
        eps: Added to the mean square.
    """
    return gated_rms_norm(x, gate, weight, eps)
