r"""The policy loss: from log-probabilities and advantages to a loss for every token.

Pure functions. With c_t the coefficient of the trust region (rl/trust_region.py), rho_t the ratio
of the policy to what sampled the token, and the token's advantage A_t,

    loss_t = - c_t A_t log pi_t + penalty (log rho_t)^2 + weight kl_t

with the gradient  d loss_t / d log pi_t = - c_t A_t + 2 penalty log rho_t + ...  At rho = 1 this is
the policy gradient -A_t. The squared log-ratio is that of Kimi K2.5 (arXiv 2602.02276): it pulls a
token back also where the region gives it no gradient. kl_t estimates the divergence of the policy
from what sampled the tokens; with x_t = -log rho_t (arXiv 2512.21852 compares them)

    k1 = -x    k2 = x^2 / 2    k3 = exp(x) - 1 - x

As a loss, k2 has the gradient of KL(pi || mu) on tokens that the policy itself would sample, k3
that of the other direction, and k1 has none in expectation.

Losses are weighted by the aggregation and added up over tokens. The learner divides once, by one
denominator of the whole step (`Batch.denominator`): a mean per micro-batch would weight tokens by
their neighbours.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from rl.batch import MicroBatch
from rl.dotted_path import load_attribute
from rl.presets import LossSettings
from rl.trust_region import TRUST_REGIONS, coefficients

Loss = Callable[[Float[Tensor, " T"], MicroBatch, LossSettings], Float[Tensor, " T"]]
"""From the policy's log-probs, the micro-batch and the settings to a loss per token, 0 off the
mask."""


def load_loss(name: str) -> Loss:
    """Find a loss by its trust region or by dotted path.

    Raises:
        ValueError: no such loss.
    """
    if name in TRUST_REGIONS:
        return token_loss
    return load_attribute("loss.type", name, known=tuple(TRUST_REGIONS))


def token_loss(
    logprobs: Float[Tensor, " T"], batch: MicroBatch, settings: LossSettings
) -> Float[Tensor, " T"]:
    """Compute the loss of each token (equation above).

    Args:
        logprobs: log pi, nats, temperature applied, with gradient.
        batch: Mask, behavior log-probs and advantages.
        settings: Trust region, penalty and divergence.

    Returns:
        Loss of each token, nats; exactly 0, with gradient 0, where the policy did not write.
    """
    log_ratio = masked_log_ratio(logprobs, batch)
    kept = coefficients(logprobs.detach(), batch, settings)
    loss = -kept * batch.advantages * logprobs + settings.log_ratio_penalty * log_ratio.square()
    if settings.kl_weight:
        loss = loss + settings.kl_weight * KL_ESTIMATORS[settings.kl_estimator](-log_ratio)
    return torch.where(batch.loss_mask, loss, 0.0)


KL_ESTIMATORS: dict[str, Callable[[Float[Tensor, " T"]], Float[Tensor, " T"]]] = {
    "k1": lambda x: -x,
    "k2": lambda x: 0.5 * x.square(),
    "k3": lambda x: x.exp() - 1.0 - x,
}
"""From x = log mu - log pi, nats, to an estimate of KL(pi || mu) on tokens of pi."""


def masked_log_ratio(logprobs: Float[Tensor, " T"], batch: MicroBatch) -> Float[Tensor, " T"]:
    """Return log rho, nats, and 0 off the mask."""
    return torch.where(batch.loss_mask, logprobs - batch.behavior_logprobs, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossStatistics:
    """Sums over the loss tokens of a step; they add up over micro-batches, and only then divide."""

    num_tokens: int = 0
    loss_sum: float = 0.0
    """Nats."""
    entropy_sum: float = 0.0
    """Nats."""
    num_stopped: int = 0
    """Tokens to which the trust region leaves no policy gradient."""
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
        settings: LossSettings,
    ) -> Self:
        """Take the sums of one micro-batch; tensors are detached."""
        mask = batch.loss_mask
        log_ratio = masked_log_ratio(logprobs.detach(), batch)
        ratio = log_ratio[mask].double().exp()
        return cls(
            num_tokens=int(mask.sum()),
            loss_sum=float(losses.detach().double().sum()),
            entropy_sum=float(entropy.detach()[mask].double().sum()),
            num_stopped=num_stopped(logprobs.detach(), batch, settings),
            log_ratio_abs_sum=float(log_ratio.abs().double().sum()),
            ratio_sum=float(ratio.sum()),
            ratio_square_sum=float(ratio.square().sum()),
        )

    def __add__(self, other: Self) -> Self:
        names = [field.name for field in fields(self)]
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in names})

    @property
    def loss(self) -> float:
        """Mean loss per loss token, nats, whatever the aggregation weighs."""
        return self.loss_sum / self.num_tokens

    @property
    def entropy(self) -> float:
        """Mean entropy of the policy where it wrote, nats."""
        return self.entropy_sum / self.num_tokens

    @property
    def ratio_masked_fraction(self) -> float:
        """Share of the loss tokens to which the trust region leaves no policy gradient."""
        return self.num_stopped / self.num_tokens

    @property
    def log_ratio_abs_mean(self) -> float:
        """Mean of |log rho|, nats."""
        return self.log_ratio_abs_sum / self.num_tokens

    @property
    def effective_sample_size(self) -> float:
        """(sum rho)^2 / (N sum rho^2): 1 on-policy, 1/N where one token carries all the weight."""
        return self.ratio_sum**2 / (self.num_tokens * self.ratio_square_sum)


def num_stopped(logprobs: Float[Tensor, " T"], batch: MicroBatch, settings: LossSettings) -> int:
    """Count the loss tokens without policy gradient; a loss of one's own has no such bound."""
    if settings.trust_region not in TRUST_REGIONS:
        return 0
    return int((batch.loss_mask & (coefficients(logprobs, batch, settings) == 0)).sum())
