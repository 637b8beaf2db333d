"""Log-probability of given tokens, and the entropy, without holding all logits at once.

    z = head_weight @ hidden / temperature                       [W], nats
    logprob = z[target] - logsumexp(z)
    entropy = -sum_w p_w log p_w,   p = softmax(z)

Backward, with upstream gradients a (log-prob) and b (entropy):

    dz = a (onehot(target) - p) - b p (log p + entropy)
"""

from jaxtyping import Float, Int
from torch import Tensor

from kernels.token_logprobs.reference import ChunkedTokenLogprobs


def token_logprobs(
    hidden: Float[Tensor, "T D"],
    head_weight: Float[Tensor, "W D"],
    targets: Int[Tensor, " T"],
    temperature: float = 1.0,
) -> tuple[Float[Tensor, " T"], Float[Tensor, " T"]]:
    """Score `targets[t]` under the distribution that `hidden[t]` predicts.

    Args:
        hidden: Final hidden states.
        head_weight: Rows of the output head.
        targets: One token id per row of `hidden`.
        temperature: Divides the logits.

    Returns:
        Log-probabilities and entropies, nats; both carry gradients.
    """
    return ChunkedTokenLogprobs.apply(hidden, head_weight, targets, temperature)  # pyright: ignore[reportReturnType]  torch types apply as Any
