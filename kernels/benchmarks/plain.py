"""Each operation as one would first write it in PyTorch: what ours has to beat.

Gradients come from autograd, every intermediate result is kept. `torch.compile` of these is the
second rival, on either device.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import conv1d, pad

EPS = 1e-5
"""Added to mean squares."""
BETA = 4.0
"""Bound of SiTU-GLU's gate branch."""
LINEAR_BETA = 25.0
"""Bound of SiTU-GLU's linear branch."""


def conv(x: Float[Tensor, "T C"], weight: Float[Tensor, "C I"]) -> Float[Tensor, "T C"]:
    """See `kernels.short_conv`: one sequence, PyTorch's grouped convolution."""
    channels, taps = weight.shape
    return conv1d(pad(x.T[None], (taps - 1, 0)), weight[:, None], groups=channels)[0].T


def norm(
    x: Float[Tensor, "T H V"], gate: Float[Tensor, "T H V"], weight: Float[Tensor, " V"]
) -> Float[Tensor, "T H V"]:
    """See `kernels.gated_norm`."""
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight * gate.sigmoid()


def situ(gate: Float[Tensor, "T F"], up: Float[Tensor, "T F"]) -> Float[Tensor, "T F"]:
    """See `kernels.situ_glu`."""
    bounded = BETA * (gate / BETA).tanh() * gate.sigmoid()
    return bounded * LINEAR_BETA * (up / LINEAR_BETA).tanh()


def residual(
    query: Float[Tensor, " D"], weight: Float[Tensor, " D"], *candidates: Float[Tensor, "T D"]
) -> Float[Tensor, "T D"]:
    """See `kernels.attention_residual`: the candidates are copied into one tensor."""
    bank = torch.stack(candidates)
    normed = bank * (bank.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight
    return ((normed @ query).softmax(dim=0).unsqueeze(-1) * bank).sum(dim=0)


def logprobs(
    hidden: Float[Tensor, "T D"], head: Float[Tensor, "W D"], targets: Int[Tensor, " T"]
) -> tuple[Float[Tensor, " T"], Float[Tensor, " T"]]:
    """See `kernels.token_logprobs`: all logits at once."""
    logp = (hidden @ head.T).float().log_softmax(dim=-1)
    return logp.gather(1, targets[:, None]).squeeze(1), -(logp.exp() * logp).sum(dim=-1)


def experts(
    x: Float[Tensor, "T X"],
    weights: Float[Tensor, "T A"],
    matrices: Float[Tensor, "E Y X"],
    chosen: Int[Tensor, "T A"],
) -> Float[Tensor, "T Y"]:
    """See `kernels.routed_experts`: each expert looks for its tokens."""
    total = x.new_zeros(len(x), matrices.shape[1])
    for expert, matrix in enumerate(matrices):
        tokens, choices = (chosen == expert).nonzero(as_tuple=True)
        given = x[tokens] @ matrix.T * weights[tokens, choices, None]
        total = total.index_add(0, tokens, given)
    return total


def round_trip(
    x: Float[Tensor, "T X"],
    weights: Float[Tensor, "T A"],
    choice_of_row: Int[Tensor, " N"],
    row_of_choice: Int[Tensor, "T A"],
) -> Float[Tensor, "T X"]:
    """See `kernels.routed_experts`: dispatch and combination, with nothing in between."""
    rows = x[choice_of_row // weights.shape[1]]
    return (rows[row_of_choice] * weights[..., None]).sum(dim=1)
