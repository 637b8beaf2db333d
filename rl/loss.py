r"""The policy loss: from log-probabilities and advantages to a loss for every token.

Pure functions. With, for token t that the policy wrote,

    rho_t = exp(log pi_t - log mu_t)      pi: the policy being trained, mu: what sampled the token
    in_t  = 1[low < rho_t < high]         both bounds strict, whatever the sign of A_t

`dis` (SAO's band on the token's ratio, with the squared log-ratio penalty of Kimi K2.5) is

    loss_t = - sg(rho_t) in_t A_t log pi_t  +  penalty * (log rho_t)^2           sg: no gradient

with the gradient  d loss_t / d log pi_t = - rho_t in_t A_t + 2 penalty log rho_t.  At rho = 1 this
is the policy gradient -A_t. The total ratio is used, so one band answers for all of it: how far the
update went, how old the sampling policy was, and where engine and learner differ in rounding.

Losses are sums over tokens. The learner divides once, by the number of loss tokens of the whole
step (`Batch.num_loss_tokens`): a mean per micro-batch would weight tokens by their neighbours.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rl.batch import MicroBatch
from rl.config import LossSection
from rl.dotted_path import load_attribute

Loss = Callable[[Float[Tensor, " T"], MicroBatch, LossSection], Float[Tensor, " T"]]
"""From the policy's log-probs, the micro-batch and the section to a loss per token, 0 off the
mask."""


def load_loss(name: str) -> Loss:
    """Find a loss by name or dotted path.

    Raises:
        ValueError: no such loss.
    """
    return dis if name == "dis" else load_attribute("loss.type", name, known=("dis",))


def dis(
    logprobs: Float[Tensor, " T"], batch: MicroBatch, section: LossSection
) -> Float[Tensor, " T"]:
    """Compute the ratio-band loss of each token (equation above).

    Args:
        logprobs: log pi, nats, temperature applied, with gradient.
        batch: Mask, behavior log-probs and advantages.
        section: `ratio_low`, `ratio_high`, `log_ratio_penalty`.

    Returns:
        Loss of each token, nats; exactly 0, with gradient 0, where the policy did not write.
    """
    log_ratio = masked_log_ratio(logprobs, batch)
    weight = in_band(log_ratio, section) * log_ratio.detach().exp()
    policy_loss = -weight * batch.advantages * logprobs
    penalty = section.log_ratio_penalty * log_ratio.square()
    return torch.where(batch.loss_mask, policy_loss + penalty, 0.0)


def masked_log_ratio(logprobs: Float[Tensor, " T"], batch: MicroBatch) -> Float[Tensor, " T"]:
    """Return log rho, nats, and 0 off the mask."""
    return torch.where(batch.loss_mask, logprobs - batch.behavior_logprobs, 0.0)


def in_band(log_ratio: Float[Tensor, " T"], section: LossSection) -> Bool[Tensor, " T"]:
    """Tell which tokens have low < rho < high, both strict."""
    ratio = log_ratio.detach().exp()
    return (ratio > section.ratio_low) & (ratio < section.ratio_high)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossStatistics:
    """Sums over the loss tokens of a step; they add up over micro-batches, and only then divide."""

    num_tokens: int = 0
    loss_sum: float = 0.0
    """Nats."""
    entropy_sum: float = 0.0
    """Nats."""
    num_out_of_band: int = 0
    log_ratio_abs_sum: float = 0.0
    """Nats."""
    ratio_sum: float = 0.0
    ratio_square_sum: float = 0.0

    @classmethod
    def measure(
        cls,
        losses: Float[Tensor, " T"],
        logprobs: Float[Tensor, " T"],
        entropy: Float[Tensor, " T"],
        batch: MicroBatch,
        section: LossSection,
    ) -> Self:
        """Take the sums of one micro-batch; tensors are detached."""
        mask = batch.loss_mask
        log_ratio = masked_log_ratio(logprobs.detach(), batch)
        ratio = log_ratio[mask].double().exp()
        return cls(
            num_tokens=int(mask.sum()),
            loss_sum=float(losses.detach().double().sum()),
            entropy_sum=float(entropy.detach()[mask].double().sum()),
            num_out_of_band=int((mask & ~in_band(log_ratio, section)).sum()),
            log_ratio_abs_sum=float(log_ratio.abs().double().sum()),
            ratio_sum=float(ratio.sum()),
            ratio_square_sum=float(ratio.square().sum()),
        )

    def __add__(self, other: Self) -> Self:
        names = [field.name for field in fields(self)]
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in names})

    @property
    def loss(self) -> float:
        """Mean loss per loss token, nats."""
        return self.loss_sum / self.num_tokens

    @property
    def entropy(self) -> float:
        """Mean entropy of the policy where it wrote, nats."""
        return self.entropy_sum / self.num_tokens

    @property
    def ratio_masked_fraction(self) -> float:
        """Share of the loss tokens outside the band."""
        return self.num_out_of_band / self.num_tokens

    @property
    def log_ratio_abs_mean(self) -> float:
        """Mean of |log rho|, nats."""
        return self.log_ratio_abs_sum / self.num_tokens

    @property
    def effective_sample_size(self) -> float:
        """(sum rho)^2 / (N sum rho^2): 1 on-policy, 1/N where one token carries all the weight."""
        return self.ratio_sum**2 / (self.num_tokens * self.ratio_square_sum)
