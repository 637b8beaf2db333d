"""Attention residual: a softmax mixture, over depth, of what earlier layers produced.

For candidates c_1 .. c_N (finished block sums, the embedding first, and the running sum last):

    score_i = query . (norm_weight * c_i / sqrt(mean(c_i^2) + eps))
    y       = sum_i softmax(score)_i c_i

The candidates are mixed as they are; only the scores see the norm. A zero query mixes uniformly.
Source: Attention Residuals (arXiv 2603.15031).
"""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from kernels.attention_residual.reference import mix_over_depth
from kernels.checks import check_tensors
from kernels.lane import lane_of


def attention_residual(
    candidates: Sequence[Float[Tensor, "T D"]],
    query: Float[Tensor, " D"],
    norm_weight: Float[Tensor, " D"],
    eps: float,
) -> Float[Tensor, "T D"]:
    """Mix the candidates of each token, differentiably.

    Args:
        candidates: At least one; all of one shape.
        query: Learned pseudo-query.
        norm_weight: Scale of the scores' RMS norm.
        eps: Added to the mean square.

    Raises:
        ValueError: there is no candidate, or the tensors do not fit together.
    """
    if not candidates:
        raise ValueError("attention_residual: there is no candidate to mix")
    tensors = {f"candidates[{i}]": (row, "T D") for i, row in enumerate(candidates)}
    check_tensors(
        "attention_residual",
        tensors | {"query": (query, "D"), "norm_weight": (norm_weight, "D")},
    )
    lane = lane_of(query)
    if lane == "triton":
        from kernels.attention_residual.triton_kernels import attention_residual_triton

        return attention_residual_triton(candidates, query, norm_weight, eps)
    if lane == "cpu":
        from kernels.attention_residual import cpu

        return cpu.mix_over_depth(candidates, query, norm_weight, eps)
    return mix_over_depth(candidates, query, norm_weight, eps)
