"""The attention residual, candidate by candidate: none of them is copied."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def mix_over_depth(
    candidates: Sequence[Float[Tensor, "T D"]],
    query: Float[Tensor, " D"],
    norm_weight: Float[Tensor, " D"],
    eps: float,
) -> Float[Tensor, "T D"]:
    """See `kernels.attention_residual`."""
    direction = query * norm_weight
    scores = [
        (candidate @ direction) * (candidate.square().mean(dim=-1) + eps).rsqrt()
        for candidate in candidates
    ]
    weights = torch.stack(scores, dim=-1).softmax(dim=-1)
    mixture = candidates[0] * weights[:, :1]
    for index, candidate in enumerate(candidates[1:], start=1):
        mixture = torch.addcmul(mixture, candidate, weights[:, index : index + 1])
    return mixture
