"""RMS norm over the last dimension, times a sigmoid gate.

    y = sigmoid(gate) * weight * x / sqrt(mean(x^2) + eps)

Source: Kimi K3 report (arXiv 2607.24653), section 2.1: the output of a KDA layer's heads.
"""

from jaxtyping import Float
from torch import Tensor

from kernels.checks import check_tensors
from kernels.gated_norm.reference import gated_rms_norm
from kernels.lane import lane_of


def gated_norm(
    x: Float[Tensor, "T H V"],
    gate: Float[Tensor, "T H V"],
    weight: Float[Tensor, " V"],
    eps: float,
) -> Float[Tensor, "T H V"]:
    """Normalise each head and gate each of its channels, differentiably.

    Args:
        x: Heads' outputs.
        gate: Gate logits.
        weight: Scale per channel, shared by the heads.
        eps: Added to the mean square.

    Raises:
        ValueError: the tensors do not fit together.
    """
    check_tensors(
        "gated_norm",
        {"x": (x, "T H V"), "gate": (gate, "T H V"), "weight": (weight, "V")},
    )
    if lane_of(x) == "triton":
        from kernels.gated_norm.triton_kernels import gated_norm_triton

        return gated_norm_triton(x, gate, weight, eps)
    return gated_rms_norm(x, gate, weight, eps)
