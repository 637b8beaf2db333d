"""SiTU-GLU: a gated unit whose output is bounded, without hard clamping.

    y = beta tanh(gate / beta) sigmoid(gate) * linear_beta tanh(up / linear_beta)

|y| <= beta * linear_beta; for small inputs y is close to silu(gate) * up.
Source: Kimi K3 report (arXiv 2607.24653), section 2.3.
"""

from jaxtyping import Float
from torch import Tensor

from kernels.checks import check_tensors
from kernels.lane import lane_of
from kernels.situ_glu.reference import bounded_glu


def situ_glu(
    gate: Float[Tensor, "*rows F"],
    up: Float[Tensor, "*rows F"],
    beta: float,
    linear_beta: float,
) -> Float[Tensor, "*rows F"]:
    """Combine the two branches of a gated feed-forward layer, differentiably.

    Args:
        gate: Gate branch.
        up: Linear branch.
        beta: Bound of the gate branch, above 0.
        linear_beta: Bound of the linear branch, above 0.

    Raises:
        ValueError: the branches do not fit together, or a bound is not positive.
    """
    letters = "".join(f"rows{i} " for i in range(gate.dim() - 1)) + "F"
    check_tensors("situ_glu", {"gate": (gate, letters), "up": (up, letters)})
    if min(beta, linear_beta) <= 0:
        raise ValueError(f"situ_glu: bounds are {beta} and {linear_beta}, expected positive ones")
    if lane_of(gate) == "triton":
        from kernels.situ_glu.triton_kernels import situ_glu_triton

        return situ_glu_triton(gate, up, beta, linear_beta)
    return bounded_glu(gate, up, beta, linear_beta)
