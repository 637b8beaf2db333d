"""The attention residual, candidate by candidate: none of them is copied.

Backward, with p the mixture's weights, r_i = 1 / sqrt(mean(c_i^2) + eps), w = query * norm_weight
and dy the upstream gradient:

    dscore_i = p_i (dy . c_i - sum_j p_j dy . c_j)
    dc_i = p_i dy + dscore_i (r_i w - (c_i . w) r_i^3 c_i / D)
    dw   = sum over tokens and i of dscore_i r_i c_i
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.linalg import vecdot, vector_norm

from kernels.precision import widen


def mix_over_depth(
    candidates: Sequence[Float[Tensor, "T D"]],
    query: Float[Tensor, " D"],
    norm_weight: Float[Tensor, " D"],
    eps: float,
) -> Float[Tensor, "T D"]:
    """See `kernels.attention_residual`."""
    direction = widen(query) * widen(norm_weight)
    mixture = DepthMixture.apply(eps, direction, *(widen(row) for row in candidates))
    return mixture.to(query.dtype)  # pyright: ignore[reportOptionalMemberAccess]  torch types apply as Any


class DepthMixture(torch.autograd.Function):
    """The mixture as a function of the candidates and of w = query * norm_weight."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        eps: float,
        direction: Tensor,
        *candidates: Tensor,
    ) -> Tensor:
        """Score, normalise, mix."""
        width = len(direction)
        products = torch.stack([candidate @ direction for candidate in candidates])
        norms = torch.stack([vector_norm(candidate, dim=-1) for candidate in candidates])
        inverse_rms = (norms.square() / width + eps).rsqrt()
        weights = (products * inverse_rms).softmax(dim=0)
        mixture = candidates[0] * weights[0, :, None]
        for weight, candidate in zip(weights[1:], candidates[1:], strict=True):
            mixture.addcmul_(candidate, weight[:, None])
        ctx.save_for_backward(direction, products, inverse_rms, weights, *candidates)
        return mixture

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        *grads: Tensor,
    ) -> tuple[Tensor | None, ...]:
        """Apply the formulas of the module."""
        direction, products, inverse_rms, weights, *candidates = ctx.saved_tensors
        grad = grads[0]
        agreement = torch.stack([vecdot(candidate, grad) for candidate in candidates])
        score_grad = weights * (agreement - (weights * agreement).sum(dim=0))
        pull = score_grad * inverse_rms
        shrink = pull * products * inverse_rms.square() / len(direction)
        direction_grad = torch.zeros_like(direction)
        candidate_grads = []
        for i, candidate in enumerate(candidates):
            direction_grad.addmv_(candidate.T, pull[i])
            candidate_grad = grad * weights[i, :, None]
            candidate_grad.addr_(pull[i], direction)
            candidate_grad.addcmul_(candidate, shrink[i, :, None], value=-1)
            candidate_grads.append(candidate_grad)
        return None, direction_grad, *candidate_grads
