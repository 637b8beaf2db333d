"""Log-probability of given tokens, and the entropy, without holding all logits at once.

    z = head_weight @ hidden / temperature                       [W], nats
    logprob = z[target] - logsumexp(z)
    entropy = -sum_w p_w log p_w,   p = softmax(z)

Logits exist one tile of rows and vocabulary at a time. Three sums per row go from tile to tile, all
relative to the highest logit m so far, and are rescaled where m rises:

    total = sum_w exp(z_w - m),   spread = sum_w exp(z_w - m) (z_w - m)
    logprob = z[target] - m - log total
    entropy = log total - spread / total

Backward, with upstream gradients a (log-prob) and b (entropy), the logits computed a second time:

    dz = a (onehot(target) - p) - b p (log p + entropy)
    dhidden = head_weight^T dz / temperature,   dhead_weight = dz hidden^T / temperature

Where a row's token was chosen among some tokens only (its support), all others have z = -inf: they
count in neither sum and get no gradient.

Source of the running sums: Online normalizer calculation for softmax (arXiv 1805.02867).
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.checks import check_tensors
from kernels.lane import lane_of
from kernels.token_logprobs.reference import TiledTokenLogprobs
from kernels.token_logprobs.support import Support

OP = "token_logprobs"


def token_logprobs(
    hidden: Float[Tensor, "T D"],
    head_weight: Float[Tensor, "W D"],
    targets: Int[Tensor, " T"],
    temperature: float = 1.0,
    support: Support | None = None,
) -> tuple[Float[Tensor, " T"], Float[Tensor, " T"]]:
    """Score `targets[t]` under the distribution that `hidden[t]` predicts, differentiably.

    Args:
        hidden: Final hidden states.
        head_weight: Rows of the output head.
        targets: One token id per row of `hidden`, each below W.
        temperature: Divides the logits, above 0.
        support: What each row's target was chosen among; None: the vocabulary, for every row. With
            it the tiled PyTorch path runs on every device.

    Returns:
        Log-probabilities and entropies, nats, in at least float32.

    Raises:
        ValueError: a shape, type, device or stride does not fit, a target is no row of the head,
            the temperature is not a positive number, or the support is not one list per row of
            tokens that the head has.
    """
    sizes = check_tensors(OP, {"hidden": (hidden, "T D"), "head_weight": (head_weight, "W D")})
    _check_targets(targets, hidden, sizes["W"])
    if not 0 < temperature < math.inf:
        raise ValueError(f"{OP}: temperature is {temperature}, expected a positive number")
    if support is not None:
        _check_support(support, targets, sizes["W"])
    elif lane_of(hidden) == "triton":
        from kernels.token_logprobs.launch import token_logprobs_triton

        return token_logprobs_triton(hidden, head_weight, targets, temperature)
    return TiledTokenLogprobs.apply(hidden, head_weight, targets, temperature, support)  # pyright: ignore[reportReturnType]  torch types apply as Any


def _check_targets(targets: Tensor, hidden: Tensor, vocabulary: int) -> None:
    if targets.shape != hidden.shape[:1] or targets.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"{OP}: targets is {targets.dtype} of shape {list(targets.shape)}, expected int32 or "
            f"int64 of shape {list(hidden.shape[:1])}"
        )
    if targets.device != hidden.device:
        raise ValueError(
            f"{OP}: targets is on {targets.device}, hidden is on {hidden.device}: move one"
        )
    lowest, highest = torch.stack(targets.aminmax()).tolist()
    if lowest < 0 or highest >= vocabulary:
        raise ValueError(
            f"{OP}: targets run from {lowest} to {highest}, the head has rows 0 to {vocabulary - 1}"
        )


def _check_support(support: Support, targets: Tensor, vocabulary: int) -> None:
    if support.lengths.shape != targets.shape:
        raise ValueError(
            f"{OP}: the support has {len(support.lengths)} rows, there are {len(targets)} targets"
        )
    num_tokens = len(support.token_ids)
    if int(support.lengths.sum()) != num_tokens or bool((support.lengths < 0).any()):
        raise ValueError(f"{OP}: the support's lengths do not add up to its {num_tokens} tokens")
    if num_tokens == 0:
        return
    lowest, highest = torch.stack(support.token_ids.aminmax()).tolist()
    if lowest < 0 or highest >= vocabulary:
        raise ValueError(
            f"{OP}: the support runs from {lowest} to {highest}, the head has rows 0 to "
            f"{vocabulary - 1}"
        )
