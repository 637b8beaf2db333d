"""Trust regions: the gradients of the published objectives, and the corrections of the sampler."""

import pytest
import torch

from rl.batch import MicroBatch
from rl.loss import token_loss
from rl.presets import TRUST_REGIONS as NAMES, LossSettings
from rl.trust_region import TRUST_REGIONS, coefficients, with_sequence_log_ratios

ALL = pytest.mark.parametrize("name", TRUST_REGIONS)


def settings(name, **fields):
    values = {"ratio_low": 0.8, "ratio_high": 1.28, "log_ratio_penalty": 0.0, **fields}
    return LossSettings(trust_region=name, **values)


def make_batch(behavior, advantages, trajectories=None, proximal=None):
    behavior = torch.as_tensor(behavior, dtype=torch.float64)
    count = len(behavior)
    return MicroBatch(
        token_ids=torch.zeros(count, dtype=torch.int64),
        cu_seqlens=torch.tensor([0, count]),
        loss_mask=torch.ones(count, dtype=torch.bool),
        behavior_logprobs=behavior,
        advantages=torch.as_tensor(advantages, dtype=torch.float64),
        expert_ids=None,
        weights=torch.ones(count, dtype=torch.float64),
        trajectories=torch.as_tensor(trajectories or [0] * count),
        proximal_logprobs=proximal,
    )


def random_batch(seed=0, count=40, spread=0.6):
    """Tokens of four trajectories whose ratios lie within and beyond the usual bounds."""
    random = torch.Generator().manual_seed(seed)
    behavior = -0.05 - 3 * torch.rand(count, generator=random, dtype=torch.float64)
    logprobs = behavior + spread * torch.randn(count, generator=random, dtype=torch.float64)
    advantages = torch.randn(count, generator=random, dtype=torch.float64)
    trajectories = [index % 4 for index in range(count)]
    return logprobs.clamp(max=-1e-3), make_batch(behavior, advantages, trajectories)


def loss_of(logprobs, batch, settings):
    """The loss as the learner takes it: what is of whole trajectories is added first."""
    [batch] = with_sequence_log_ratios([batch], [logprobs.detach()], settings)
    return token_loss(logprobs, batch, settings)


def gradient_of(objective, logprobs):
    live = logprobs.clone().requires_grad_()
    objective(live).sum().backward()
    return live.grad


def test_every_region_that_a_preset_can_name_is_there():
    assert tuple(TRUST_REGIONS) == NAMES


@ALL
def test_at_ratio_one_the_gradient_is_the_policy_gradient(name):
    """Finite differences of A log pi over the logits of a softmax."""
    logits = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
    action, advantage = 2, 0.7
    live = logits.clone().requires_grad_()
    logprob = torch.log_softmax(live, 0)[action : action + 1]
    batch = make_batch(logprob.detach(), [advantage])
    loss_of(logprob, batch, settings(name)).sum().backward()
    step = 1e-6
    for index in range(3):
        moved = torch.zeros(3, dtype=torch.float64)
        moved[index] = step
        up, down = (torch.log_softmax(logits + sign * moved, 0)[action] for sign in (1, -1))
        expected = -advantage * float(up - down) / (2 * step)
        assert float(live.grad[index]) == pytest.approx(expected, abs=1e-8)


def test_ppo_clip_has_the_gradient_of_its_minimum():
    logprobs, batch = random_batch()

    def objective(live):
        ratio = (live - batch.behavior_logprobs).exp()
        bounded = ratio.clamp(0.8, 1.28)
        return torch.minimum(ratio * batch.advantages, bounded * batch.advantages)

    got = gradient_of(lambda live: loss_of(live, batch, settings("ppo_clip")), logprobs)
    assert got == pytest.approx(-gradient_of(objective, logprobs))
    assert 0 < int((got == 0).sum()) < len(got)


def test_gspo_has_the_gradient_of_its_clipped_sequences():
    logprobs, batch = random_batch(spread=0.2)
    bounds = settings("gspo", ratio_low=0.95, ratio_high=1.05)
    advantages = torch.tensor([0.5, -1.0, 2.0, 0.3], dtype=torch.float64)[batch.trajectories]
    batch = make_batch(batch.behavior_logprobs, advantages, batch.trajectories.tolist())

    def objective(live):
        total = live.new_zeros(())
        for number in range(4):
            of_it = batch.trajectories == number
            ratio = (live - batch.behavior_logprobs)[of_it].mean().exp()
            advantage = batch.advantages[of_it][0]
            clipped = ratio.clamp(0.95, 1.05)
            total = total + of_it.sum() * torch.minimum(ratio * advantage, clipped * advantage)
        return total

    got = gradient_of(lambda live: loss_of(live, batch, bounds), logprobs)
    assert got == pytest.approx(-gradient_of(objective, logprobs))
    stopped = {number: bool((got[batch.trajectories == number] == 0).all()) for number in range(4)}
    assert set(stopped.values()) == {True, False}


def test_sequences_are_compared_with_the_proximal_policy_where_the_sampler_is_corrected():
    logprobs, batch = random_batch(spread=0.2)
    older = batch.behavior_logprobs
    batch = make_batch(older, [1.0] * 40, batch.trajectories.tolist(), proximal=logprobs - 0.04)
    plain, corrected = settings("gspo"), settings("gspo", sampler_correction="tis")
    [of_all] = with_sequence_log_ratios([batch], [logprobs], plain)
    [of_update] = with_sequence_log_ratios([batch], [logprobs], corrected)
    assert of_update.sequence_log_ratios == pytest.approx(torch.full((40,), 0.04).double())
    means = torch.stack([(logprobs - older)[batch.trajectories == n].mean() for n in range(4)])
    assert of_all.sequence_log_ratios == pytest.approx(means[batch.trajectories])


def test_cispo_bounds_the_weight_and_drops_nothing():
    logprobs, batch = random_batch()
    ratio = (logprobs - batch.behavior_logprobs).exp()
    got = coefficients(logprobs, batch, settings("cispo"))
    assert got == pytest.approx(ratio.clamp(0.8, 1.28))


def test_the_band_is_blind_to_the_sign_of_the_advantage():
    logprobs, batch = random_batch()
    ratio = (logprobs - batch.behavior_logprobs).exp()
    inside = (ratio > 0.8) & (ratio < 1.28)
    for name in ("dis", "icepop"):
        got = coefficients(logprobs, batch, settings(name))
        assert got == pytest.approx(torch.where(inside, ratio, 0.0))


def test_dppo_stops_by_the_change_of_probability_in_the_direction_of_the_advantage():
    bounds = settings("dppo_tv", tv_bound=0.2)
    # From .5 to .75 (+.25) and from .001 to .01 (a ratio of ten, but +.009), up and down.
    behavior = torch.tensor([0.5, 0.001, 0.75, 0.01]).double().log()
    logprobs = torch.tensor([0.75, 0.01, 0.5, 0.001]).double().log()
    rising = coefficients(logprobs, make_batch(behavior, [1.0] * 4), bounds)
    falling = coefficients(logprobs, make_batch(behavior, [-1.0] * 4), bounds)
    assert rising == pytest.approx(torch.tensor([0.0, 10.0, 2 / 3, 0.1]).double())
    assert falling == pytest.approx(torch.tensor([1.5, 10.0, 0.0, 0.1]).double())


def test_decoupled_clips_the_update_and_weighs_what_is_older():
    logprobs, batch = random_batch()
    proximal = batch.behavior_logprobs + 0.3
    batch = make_batch(batch.behavior_logprobs, batch.advantages, proximal=proximal)

    def objective(live):
        update = (live - proximal).exp()
        bounded = update.clamp(0.8, 1.28)
        lag = (proximal - batch.behavior_logprobs).exp()
        return lag * torch.minimum(update * batch.advantages, bounded * batch.advantages)

    got = gradient_of(lambda live: loss_of(live, batch, settings("decoupled")), logprobs)
    assert got == pytest.approx(-gradient_of(objective, logprobs))


@pytest.mark.parametrize(("correction", "beyond"), [("tis", 1.5), ("mis", 0.0)])
def test_a_corrected_sampler_is_a_bounded_factor_beside_the_region(correction, beyond):
    proximal = torch.tensor([-1.0, -1.0, -1.0]).double()
    behavior = proximal - torch.tensor([1.2, 1.5, 3.0]).double().log()
    logprobs = proximal + torch.tensor([1.1, 0.9, 1.0]).double().log()
    batch = make_batch(behavior, [1.0] * 3, proximal=proximal)
    bounds = settings("ppo_clip", sampler_correction=correction, sampler_cap=1.5 + 1e-9)
    expected = torch.tensor([1.2 * 1.1, 1.5 * 0.9, beyond]).double()
    assert coefficients(logprobs, batch, bounds) == pytest.approx(expected)


def test_a_region_beside_a_corrected_sampler_stops_the_update_alone():
    """The ratio to the engine is beyond the bound, that of the update is not."""
    proximal = torch.tensor([-1.0]).double()
    batch = make_batch(proximal - 0.5, [1.0], proximal=proximal)
    assert float(coefficients(proximal, batch, settings("ppo_clip"))) == 0.0
    corrected = settings("ppo_clip", sampler_correction="tis", sampler_cap=10.0)
    assert float(coefficients(proximal, batch, corrected)) == pytest.approx(float(torch.e**0.5))


@ALL
def test_the_gradient_is_exactly_zero_off_the_mask(name):
    logprobs, batch = random_batch()
    mask = torch.arange(len(logprobs)) % 2 == 0
    batch.loss_mask.copy_(mask)
    got = gradient_of(lambda live: loss_of(live, batch, settings(name)), logprobs)
    assert (got[~mask] == 0).all()
    assert (got[mask] != 0).any()


@ALL
def test_a_token_beyond_every_bound_has_no_gradient_where_the_region_stops(name):
    """A ratio of e^3 towards the advantage."""
    batch = make_batch([-4.0, -4.0], [1.0, 1.0])
    logprobs = torch.tensor([-1.0, -1.0], dtype=torch.float64)
    # The first update of a step has moved nothing: what is decoupled weighs lag and stops nothing.
    expected = {"cispo": 1.28, "decoupled": float(torch.e**3)}.get(name, 0.0)
    [batch] = with_sequence_log_ratios([batch], [logprobs], settings(name))
    got = coefficients(logprobs, batch, settings(name))
    assert got == pytest.approx(torch.full((2,), expected, dtype=torch.float64))
