"""SiTU-GLU: a gated unit whose output is bounded, without hard clamping.

    y = beta tanh(gate / beta) sigmoid(gate) * linear_beta tanh(up / linear_beta)

|y| <= beta * linear_beta; for small inputs y is close to silu(gate) * up.
Source: Kimi K3 report (arXiv 2607.24653), section 2.3.
"""

from jaxtyping import Float
from torch import Tensor

from kernels.situ_glu.reference import SituGlu


def situ_glu(
    gate: Float[Tensor, "*rows F"],
    up: Float[Tensor, "*rows F"],
    beta: float,
    linear_beta: float,
) -> Float[Tensor, "*rows F"]:
    """Combine the two branches of a gated feed-forward layer.

    Args:
        gate: Gate branch.
        up: Linear branch.
        beta: Bound of the gate branch.
        linear_beta: Bound of the linear branch.
    """
    return SituGlu.apply(gate, up, beta, linear_beta)  # pyright: ignore[reportReturnType]  torch types apply as Any
