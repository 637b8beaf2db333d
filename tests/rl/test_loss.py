"""The loss: its gradient against finite differences and the equation, the band, the sums."""

import dataclasses

import pytest
import torch

from rl.batch import MicroBatch
from rl.loss import KL_ESTIMATORS, LossStatistics, load_loss, token_loss
from rl.presets import LossSettings

NO_PENALTY = LossSettings(log_ratio_penalty=0.0)


def make_batch(behavior, advantages, mask=None):
    behavior = torch.tensor(behavior, dtype=torch.float64)
    mask = torch.ones(len(behavior), dtype=torch.bool) if mask is None else torch.tensor(mask)
    return MicroBatch(
        token_ids=torch.zeros(len(behavior), dtype=torch.int64),
        cu_seqlens=torch.tensor([0, len(behavior)]),
        loss_mask=mask,
        behavior_logprobs=torch.where(mask, behavior, 0.0),
        advantages=torch.where(mask, torch.tensor(advantages, dtype=torch.float64), 0.0),
        expert_ids=None,
        weights=mask.double(),
        trajectories=torch.zeros(len(behavior), dtype=torch.int64),
    )


def gradient(logprobs, batch, section):
    logprobs = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    token_loss(logprobs, batch, section).sum().backward()
    return logprobs.grad


def test_at_ratio_one_the_gradient_is_the_policy_gradient():
    """Finite differences of sum(loss) over the logits of a softmax, against -A grad log pi."""
    logits = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
    action, advantage = 2, 0.7

    def loss_at(values, behavior):
        logprob = torch.log_softmax(values, 0)[action : action + 1]
        batch = make_batch([behavior], [advantage])
        return token_loss(logprob, batch, LossSettings()).sum()

    behavior = float(torch.log_softmax(logits, 0)[action])
    live = logits.clone().requires_grad_()
    loss_at(live, behavior).backward()

    step = 1e-6
    for index in range(3):
        moved = torch.zeros(3, dtype=torch.float64)
        moved[index] = step
        up, down = (torch.log_softmax(logits + sign * moved, 0)[action] for sign in (1, -1))
        expected = -advantage * float(up - down) / (2 * step)
        assert float(live.grad[index]) == pytest.approx(expected, abs=1e-8)


def test_the_gradient_is_the_ratio_times_the_advantage_inside_the_band():
    batch = make_batch([-1.0, -1.0], [0.5, -2.0])
    ratio = torch.exp(torch.tensor([0.3, -0.4], dtype=torch.float64))
    got = gradient([-0.7, -1.4], batch, NO_PENALTY)
    assert got == pytest.approx(-ratio * batch.advantages)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("log_ratio", [-2.0, 1.5])
def test_the_gradient_is_exactly_zero_outside_the_band_whatever_the_sign(advantage, log_ratio):
    batch = make_batch([-3.0], [advantage])
    assert gradient([-3.0 + log_ratio], batch, NO_PENALTY).tolist() == [0.0]


def test_both_bounds_of_the_band_are_strict():
    section = LossSettings(ratio_low=0.5, ratio_high=2.0, log_ratio_penalty=0.0)
    two = torch.tensor(2.0, dtype=torch.float64)
    for log_ratio in (float(two.log()), -float(two.log())):
        ratio = torch.tensor(log_ratio, dtype=torch.float64).exp()
        assert float(ratio) in (0.5, 2.0)
        batch = make_batch([0.0], [1.0])
        assert gradient([log_ratio], batch, section).tolist() == [0.0]
        inside = log_ratio * (1 - 1e-9)
        assert gradient([inside], batch, section).tolist() != [0.0]


def test_loss_and_gradient_are_exactly_zero_off_the_mask():
    batch = make_batch([-1.0, -1.0, -1.0], [1.0, 1.0, 1.0], mask=[False, True, False])
    logprobs = torch.tensor([-9.0, -1.1, -0.1], dtype=torch.float64, requires_grad=True)
    losses = token_loss(logprobs, batch, LossSettings())
    losses.sum().backward()
    assert losses[[0, 2]].tolist() == [0.0, 0.0]
    assert logprobs.grad[[0, 2]].tolist() == [0.0, 0.0]
    assert float(logprobs.grad[1]) != 0.0


def test_the_penalty_pulls_towards_the_behavior_policy_also_outside_the_band():
    section = LossSettings(log_ratio_penalty=0.1)
    batch = make_batch([-3.0], [1.0])
    assert float(gradient([-1.0], batch, section)) == pytest.approx(2 * 0.1 * 2.0)


def test_statistics_add_up_over_any_partition():
    torch.manual_seed(0)
    behavior = -torch.rand(12, dtype=torch.float64) * 3
    logprobs = behavior + torch.randn(12, dtype=torch.float64)
    entropy = torch.rand(12, dtype=torch.float64)
    advantages = torch.randn(12, dtype=torch.float64)
    mask = torch.arange(12) % 3 != 0

    def measure(start, stop):
        part = slice(start, stop)
        batch = make_batch(behavior[part].tolist(), advantages[part].tolist(), mask[part].tolist())
        losses = token_loss(logprobs[part], batch, LossSettings())
        return LossStatistics.measure(losses, logprobs[part], entropy[part], batch, LossSettings())

    whole = dataclasses.asdict(measure(0, 12))
    parts = dataclasses.asdict(measure(0, 5) + measure(5, 6) + measure(6, 12))
    assert parts == pytest.approx(whole)


def test_statistics_of_an_on_policy_batch_are_the_ideal_ones():
    batch = make_batch([-1.0, -2.0], [1.0, -1.0])
    logprobs = batch.behavior_logprobs.clone()
    losses = token_loss(logprobs, batch, LossSettings())
    entropy = torch.tensor([0.5, 1.5])
    statistics = LossStatistics.measure(losses, logprobs, entropy, batch, LossSettings())
    assert statistics.effective_sample_size == pytest.approx(1.0)
    assert statistics.ratio_masked_fraction == 0.0
    assert statistics.log_ratio_abs_mean == 0.0
    assert statistics.entropy == pytest.approx(1.0)


def test_one_token_that_carries_all_weight_halves_the_sample_of_two():
    batch = make_batch([-30.0, -1.0], [1.0, 1.0])
    logprobs = torch.tensor([-0.1, -30.0], dtype=torch.float64)
    statistics = LossStatistics.measure(
        token_loss(logprobs, batch, LossSettings()), logprobs, logprobs, batch, LossSettings()
    )
    assert statistics.effective_sample_size == pytest.approx(0.5)
    assert statistics.ratio_masked_fraction == 1.0


def test_an_unknown_loss_is_one_clear_line():
    assert load_loss("dis") is token_loss
    with pytest.raises(ValueError, match=r"loss\.type = 'dys'"):
        load_loss("dys")


def test_a_loss_of_ones_own_is_found_by_its_dotted_path():
    assert load_loss("rl.loss:token_loss") is token_loss


@pytest.mark.parametrize("name", KL_ESTIMATORS)
def test_a_divergence_is_estimated_without_bias_by_k1_and_k3_and_nearly_by_k2(name):
    """Enumerate a vocabulary: E_pi[k] against KL(pi || mu)."""
    torch.manual_seed(0)
    mu = torch.log_softmax(torch.randn(6, dtype=torch.float64), 0)
    pi = torch.log_softmax(mu + 0.02 * torch.randn(6, dtype=torch.float64), 0)
    exact = float((pi.exp() * (pi - mu)).sum())
    estimate = float((pi.exp() * KL_ESTIMATORS[name](mu - pi)).sum())
    assert estimate == pytest.approx(exact, rel=1e-9 if name != "k2" else 0.05)


def test_the_divergence_is_added_with_its_weight():
    batch = make_batch([-1.0], [0.0])
    settings = LossSettings(log_ratio_penalty=0.0, kl_estimator="k2", kl_weight=0.5)
    assert float(gradient([-0.8], batch, settings)) == pytest.approx(0.5 * 0.2)
