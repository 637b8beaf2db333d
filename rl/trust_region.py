r"""Trust regions: how much of its policy gradient a token keeps, by how far its odds have moved.

Takes the policy's log-probs (detached) and the micro-batch, returns a coefficient c_t for every
token; the loss  - c_t A_t log pi_t  then has the gradient  - c_t A_t grad log pi_t.  Published
objectives are written here by that coefficient, which is all of them that an optimizer sees. With
pi the policy, mu what sampled the token, and

    r = pi / mu          the total ratio: size of the update, lag, and rounding, all in one
    u = pi / prox        prox: the policy at the start of the step
    w = prox / mu        lag and rounding alone

    ppo_clip    r, but 0 where A > 0 and r > high or A < 0 and r < low   (arXiv 1707.06347; high and
                low apart: DAPO, 2503.14476)
    cispo       min(max(r, low), high)                                   (arXiv 2506.13585)
    gspo        as ppo_clip with r = exp(mean over the trajectory's tokens of log r)   (2507.18071)
    dis         r where low < r < high, else 0, whatever the sign of A   (SAO, arXiv 2607.07508;
                with one update per step also IcePop, Ring-1T, 2510.18855)
    dppo_tv     r, but 0 where A > 0 and pi - mu > d or A < 0 and pi - mu < -d   (arXiv 2602.04879)
    decoupled   w times ppo_clip of u                                    (AReaL, arXiv 2505.24298)

All are 1 where pi = mu. Bounds are strict. A correction of the sampler puts u for r and a factor
beside it, so that the region bounds the update alone:

    tis    min(w, cap)              (truncated importance sampling)
    mis    w where w <= cap, else 0 (masked importance sampling)
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from rl.batch import MicroBatch
from rl.presets import LossSettings

TrustRegion = Callable[
    [Float[Tensor, " T"], Float[Tensor, " T"], MicroBatch, LossSettings], Float[Tensor, " T"]
]
"""From log pi, the log-probs that it is compared with (both nats), the micro-batch and the
settings."""


def coefficients(
    logprobs: Float[Tensor, " T"], batch: MicroBatch, settings: LossSettings
) -> Float[Tensor, " T"]:
    """Return the share of its policy gradient that each token keeps; 0 off the mask.

    Args:
        logprobs: log pi, nats, temperature applied, without gradient.
        batch: Mask, advantages, behavior and proximal log-probs.
        settings: Which region, its bounds, and the correction of the sampler.
    """
    region = TRUST_REGIONS[settings.trust_region]
    if settings.sampler_correction == "none":
        kept = region(logprobs, batch.behavior_logprobs, batch, settings)
    else:
        proximal = proximal_logprobs(logprobs, batch)
        factor = (proximal - batch.behavior_logprobs).exp()
        if settings.sampler_correction == "tis":
            factor = factor.clamp(max=settings.sampler_cap)
        else:
            factor = torch.where(factor <= settings.sampler_cap, factor, 0.0)
        kept = factor * region(logprobs, proximal, batch, settings)
    return torch.where(batch.loss_mask, kept, 0.0)


def ppo_clip(
    logprobs: Float[Tensor, " T"],
    reference: Float[Tensor, " T"],
    batch: MicroBatch,
    settings: LossSettings,
) -> Float[Tensor, " T"]:
    """Stop a token that has gone far enough in the direction of its advantage."""
    return _clipped((logprobs - reference).exp(), batch.advantages, settings)


def cispo(
    logprobs: Float[Tensor, " T"],
    reference: Float[Tensor, " T"],
    _batch: MicroBatch,
    settings: LossSettings,
) -> Float[Tensor, " T"]:
    """Bound the weight of a token, but drop none."""
    return (logprobs - reference).exp().clamp(settings.ratio_low, settings.ratio_high)


def gspo(
    logprobs: Float[Tensor, " T"],
    reference: Float[Tensor, " T"],
    batch: MicroBatch,
    settings: LossSettings,
) -> Float[Tensor, " T"]:
    """Stop a trajectory, all tokens of it, by the geometric mean of its ratios."""
    log_ratios = batch.sequence_log_ratios
    if log_ratios is None:
        totals, counts = sum_by_trajectory(logprobs - reference, batch)
        log_ratios = (totals / counts.clamp(min=1))[batch.trajectories]
    return _clipped(log_ratios.exp(), batch.advantages, settings)


def dis(
    logprobs: Float[Tensor, " T"],
    reference: Float[Tensor, " T"],
    _batch: MicroBatch,
    settings: LossSettings,
) -> Float[Tensor, " T"]:
    """Drop a token outside the band, whatever the sign of its advantage."""
    ratio = (logprobs - reference).exp()
    return ((ratio > settings.ratio_low) & (ratio < settings.ratio_high)) * ratio


def dppo_tv(
    logprobs: Float[Tensor, " T"],
    reference: Float[Tensor, " T"],
    batch: MicroBatch,
    settings: LossSettings,
) -> Float[Tensor, " T"]:
    """Stop a token by how far its probability moved, not by which factor: rare tokens may move."""
    moved = logprobs.exp() - reference.exp()
    is_past = _signed(moved, batch.advantages) > settings.tv_bound
    return torch.where(is_past, 0.0, (logprobs - reference).exp())


def decoupled(
    logprobs: Float[Tensor, " T"],
    reference: Float[Tensor, " T"],
    batch: MicroBatch,
    settings: LossSettings,
) -> Float[Tensor, " T"]:
    """Clip the update, and weigh what is older than it."""
    proximal = proximal_logprobs(logprobs, batch)
    weight = (proximal - reference).exp()
    return weight * _clipped((logprobs - proximal).exp(), batch.advantages, settings)


TRUST_REGIONS: dict[str, TrustRegion] = {
    "ppo_clip": ppo_clip,
    "cispo": cispo,
    "gspo": gspo,
    "dis": dis,
    "icepop": dis,
    "dppo_tv": dppo_tv,
    "decoupled": decoupled,
}
"""By the name that a configuration uses."""


def proximal_logprobs(logprobs: Float[Tensor, " T"], batch: MicroBatch) -> Float[Tensor, " T"]:
    """Return the log-probs at the start of the step: the policy's own in its first update."""
    return logprobs if batch.proximal_logprobs is None else batch.proximal_logprobs


def sum_by_trajectory(
    values: Float[Tensor, " T"], batch: MicroBatch
) -> tuple[Float[Tensor, " I"], Int64[Tensor, " I"]]:
    """Add up a value over each trajectory's loss tokens in a micro-batch; also count them."""
    places = batch.trajectories[batch.loss_mask]
    size = int(batch.trajectories.max()) + 1
    totals = values.new_zeros(size).index_add(0, places, values[batch.loss_mask])
    return totals, torch.bincount(places, minlength=size)


def _clipped(
    ratio: Float[Tensor, " T"], advantages: Float[Tensor, " T"], settings: LossSettings
) -> Float[Tensor, " T"]:
    is_past = ((advantages > 0) & (ratio > settings.ratio_high)) | (
        (advantages < 0) & (ratio < settings.ratio_low)
    )
    return torch.where(is_past, 0.0, ratio)


def _signed(moved: Float[Tensor, " T"], advantages: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
    return moved * advantages.sign()
