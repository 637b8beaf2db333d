"""The attention residual as a compiled loop, float32: token by token, in one pass over memory.

PyTorch's matrix-vector product and its softmax over depth give a token other bits in another batch.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kernels.attention_residual.reference import DepthMixture
from kernels.compiled import compiled

LANES = 16
"""A sum over channels runs in so many lanes, which become vector registers."""
ZERO, ONE = np.float32(0.0), np.float32(1.0)


def mix_over_depth(
    candidates: Sequence[Float[Tensor, "T D"]],
    query: Float[Tensor, " D"],
    norm_weight: Float[Tensor, " D"],
    eps: float,
) -> Float[Tensor, "T D"]:
    """See `kernels.attention_residual`."""
    return CompiledMixture.apply(eps, query * norm_weight, *candidates)  # pyright: ignore[reportReturnType]  torch types apply as Any


class CompiledMixture(DepthMixture):
    """The reference with another forward; it saves the same for the same backward."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        eps: float,
        direction: Tensor,
        *candidates: Tensor,
    ) -> Tensor:
        """Score, normalise, mix."""
        rows = tuple(candidate.contiguous().numpy() for candidate in candidates)
        mixture = torch.empty(candidates[0].shape)
        products, inverse_rms, weights = torch.empty(3, len(rows), len(mixture)).unbind()
        _mix(
            rows,
            direction.numpy(),
            np.float32(eps),
            products.numpy(),
            inverse_rms.numpy(),
            weights.numpy(),
            mixture.numpy(),
        )
        ctx.save_for_backward(direction, products, inverse_rms, weights, *candidates)
        return mixture


@compiled
def _lane_sums(
    row: np.ndarray, t: int, direction: np.ndarray, lanes: np.ndarray
) -> tuple[np.float32, np.float32]:
    """Return row[t] . direction and |row[t]|^2, each added up in one order."""
    width = len(direction)
    whole = width - width % LANES
    for j in range(2 * LANES):
        lanes[j] = ZERO
    for start in range(0, whole, LANES):
        for j in range(LANES):
            x = row[t, start + j]
            lanes[j] += x * direction[start + j]
            lanes[LANES + j] += x * x
    product, square = ZERO, ZERO
    for j in range(LANES):
        product += lanes[j]
        square += lanes[LANES + j]
    for d in range(whole, width):
        product += row[t, d] * direction[d]
        square += row[t, d] * row[t, d]
    return product, square


@compiled
def _mix(
    candidates: tuple[np.ndarray, ...],
    direction: np.ndarray,
    eps: np.float32,
    products: np.ndarray,
    inverse_rms: np.ndarray,
    weights: np.ndarray,
    mixture: np.ndarray,
) -> None:
    """Fill the last four, one token after another."""
    num_candidates = len(candidates)
    num_tokens, width = mixture.shape
    lanes = np.empty(2 * LANES, np.float32)
    for t in range(num_tokens):
        highest = np.float32(-np.inf)
        for i in range(num_candidates):
            product, square = _lane_sums(candidates[i], t, direction, lanes)
            inverse = ONE / np.sqrt(square / np.float32(width) + eps)
            products[i, t] = product
            inverse_rms[i, t] = inverse
            weights[i, t] = product * inverse
            highest = max(highest, weights[i, t])
        total = ZERO
        for i in range(num_candidates):
            weights[i, t] = np.exp(weights[i, t] - highest)
            total += weights[i, t]
        for d in range(width):
            mixture[t, d] = ZERO
        for i in range(num_candidates):
            weight = weights[i, t] / total
            weights[i, t] = weight
            row = candidates[i]
            for d in range(width):
                mixture[t, d] += weight * row[t, d]
