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

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
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
    reference = reference_logprobs(logprobs, batch, settings)
    kept = TRUST_REGIONS[settings.trust_region](logprobs, reference, batch, settings)
    if settings.sampler_correction != "none":
        factor = (reference - batch.behavior_logprobs).exp()
        if settings.sampler_correction == "tis":
            factor = factor.clamp(max=settings.sampler_cap)
        else:
            factor = torch.where(factor <= settings.sampler_cap, factor, 0.0)
        kept = factor * kept
    return torch.where(batch.loss_mask, kept, 0.0)


def reference_logprobs(
    logprobs: Float[Tensor, " T"], batch: MicroBatch, settings: LossSettings
) -> Float[Tensor, " T"]:
    """Return what a region compares the policy with, nats: what sampled, or the proximal policy.

    The latter where the way from the one to the other is corrected by a factor of its own.
    """
    if settings.sampler_correction == "none":
        return batch.behavior_logprobs
    return proximal_logprobs(logprobs, batch)


def with_sequence_log_ratios(
    micro_batches: Sequence[MicroBatch],
    logprobs: Sequence[Float[Tensor, " T"]],
    settings: LossSettings,
) -> list[MicroBatch]:
    """Add the mean log-ratio of each token's trajectory, over all micro-batches that hold it.

    Args:
        micro_batches: All of the step: the segments of a trajectory may lie apart.
        logprobs: log pi of each, nats, temperature applied, without gradient.
        settings: What the ratio is to.
    """
    size = 1 + max(int(batch.trajectories.max()) for batch in micro_batches)
    totals = torch.zeros(size, dtype=logprobs[0].dtype)
    counts = torch.zeros(size, dtype=torch.int64)
    for batch, scores in zip(micro_batches, logprobs, strict=True):
        places = batch.trajectories[batch.loss_mask]
        log_ratio = scores - reference_logprobs(scores, batch, settings)
        totals.index_add_(0, places, log_ratio[batch.loss_mask])
        counts += torch.bincount(places, minlength=size)
    means = totals / counts.clamp(min=1)
    return [
        replace(batch, sequence_log_ratios=means[batch.trajectories]) for batch in micro_batches
    ]


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
    _logprobs: Float[Tensor, " T"],
    _reference: Float[Tensor, " T"],
    batch: MicroBatch,
    settings: LossSettings,
) -> Float[Tensor, " T"]:
    """Stop a trajectory, all tokens of it, by the geometric mean of its ratios."""
    assert batch.sequence_log_ratios is not None, "with_sequence_log_ratios adds them"
    return _clipped(batch.sequence_log_ratios.exp(), batch.advantages, settings)


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


def _clipped(
    ratio: Float[Tensor, " T"], advantages: Float[Tensor, " T"], settings: LossSettings
) -> Float[Tensor, " T"]:
    is_past = ((advantages > 0) & (ratio > settings.ratio_high)) | (
        (advantages < 0) & (ratio < settings.ratio_low)
    )
    return torch.where(is_past, 0.0, ratio)


def _signed(moved: Float[Tensor, " T"], advantages: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
    return moved * advantages.sign()
