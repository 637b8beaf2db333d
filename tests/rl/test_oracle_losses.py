"""Aggregations, policy losses and divergences against what verl and TRL answered.

`make oracles` asks them anew. An optimizer sees a loss by its gradient alone, so gradients by the
log-probs of a whole small batch are compared. Where a package disagrees, the test's name says in
what, the test shows by how much, and its docstring says why we do otherwise.
"""

import numpy as np
import pytest
import torch

from rl.aggregation import AGGREGATIONS
from rl.batch import MicroBatch
from rl.loss import KL_ESTIMATORS, token_loss
from rl.presets import LossSettings
from rl.trust_region import with_sequence_log_ratios

EXACT = 1e-12
"""Both sides are float64, and multiply a handful of numbers."""


def close(expected):
    return pytest.approx(torch.tensor(expected, dtype=torch.float64), rel=EXACT, abs=EXACT)


def tensor(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def batch_of(inputs, aggregation, proximal=None):
    """The rows of a recorded case end to end, each a trajectory, and the step's denominator."""
    mask = torch.tensor(inputs["mask"], dtype=torch.bool)
    counts = mask.sum(1)
    weights, denominator = AGGREGATIONS[aggregation](
        counts.numpy(), np.arange(len(mask)), inputs.get("most", 1)
    )
    lengths = [0] + [mask.shape[1]] * len(mask)
    batch = MicroBatch(
        token_ids=torch.zeros(mask.numel(), dtype=torch.int64),
        cu_seqlens=torch.tensor(lengths).cumsum(0),
        loss_mask=mask.flatten(),
        behavior_logprobs=tensor(inputs["behavior_logprobs"]).flatten(),
        advantages=tensor(inputs["advantages"])[:, None].expand(mask.shape).flatten(),
        expert_ids=None,
        weights=(tensor(weights)[:, None] * mask).flatten(),
        trajectories=torch.arange(len(mask)).repeat_interleave(mask.shape[1]),
        proximal_logprobs=None if proximal is None else tensor(proximal).flatten(),
    )
    return batch, denominator


def gradient(inputs, aggregation="token_mean", proximal=None, **settings):
    """What the learner would take: the gradient by the log-probs, [B, T]."""
    loss = LossSettings(**{"log_ratio_penalty": 0.0, **settings})
    batch, denominator = batch_of(inputs, aggregation, proximal)
    live = tensor(inputs["logprobs"]).flatten().requires_grad_()
    [batch] = with_sequence_log_ratios([batch], [live.detach()], loss)
    ((token_loss(live, batch, loss) * batch.weights).sum() / denominator).backward()
    return live.grad.view(len(inputs["mask"]), -1)


def ratios(inputs):
    return (tensor(inputs["logprobs"]) - tensor(inputs["behavior_logprobs"])).exp()


def within(inputs, **settings):
    """Bounds as a distance from ratio 1."""
    return {
        "ratio_low": 1 - inputs["low"],
        "ratio_high": 1 + inputs["high"],
        "tv_bound": inputs["high"],
        **settings,
    }


# Aggregations.


@pytest.mark.parametrize(
    ("ours", "theirs", "tolerance"),
    [
        ("token_mean", "token-mean", EXACT),
        ("token_sum_const", "seq-mean-token-sum-norm", EXACT),
        ("seq_mean_token_sum", "seq-mean-token-sum", EXACT),
        # verl adds 1e-8 to the number of tokens.
        ("seq_mean_token_mean", "seq-mean-token-mean", 1e-8),
    ],
)
def test_a_token_weighs_what_verl_says(recorded, ours, theirs, tolerance):
    case = recorded("verl", "aggregation")
    batch, denominator = batch_of(case["inputs"], ours)
    expected = tensor(case["results"][theirs]).flatten()
    assert batch.weights / denominator == pytest.approx(expected, rel=tolerance, abs=EXACT)


def test_disagreement_a_mean_over_a_micro_batch_weighs_tokens_by_their_neighbours(recorded):
    """verl without the step's number of tokens, and TRL's bnpo: a mean of means.

    Ours divides once, by the step's tokens, as verl does when it is told their number: the packing
    is the machine's business, and the same tokens would train otherwise on more memory.
    """
    case = recorded("verl", "aggregation")
    batch, denominator = batch_of(case["inputs"], "token_mean")
    ours = batch.weights / denominator
    told = case["results"]["token-mean, two micro-batches, all tokens known"]
    assert ours.view(4, -1) == close(told)
    of_means = tensor(case["results"]["token-mean, two micro-batches"]).flatten()
    mask = batch.loss_mask
    assert ours[mask].unique() == pytest.approx(tensor([1 / int(mask.sum())]))
    assert of_means[mask].max() / of_means[mask].min() > 1.3


def test_disagreement_bnpo_of_trl_depends_on_the_micro_batch(recorded):
    case = recorded("trl", "losses")
    inputs, results = case["inputs"], case["results"]
    ours = gradient(inputs, trust_region="ppo_clip", **within(inputs))
    assert ours == close(results["bnpo"])
    split = tensor(results["bnpo, two micro-batches"])
    counts = torch.tensor(inputs["mask"]).sum(1)
    shares = [counts.sum() / (2 * part) for part in (counts[0], counts[1:].sum())]
    expected = ours * tensor([shares[0], *[shares[1]] * 3])[:, None]
    assert split == pytest.approx(expected)
    assert shares[0] > 2 * shares[1]


# Trust regions.


@pytest.mark.parametrize("name", ["ppo_clip", "gspo", "cispo", "dppo_tv"])
def test_the_gradient_of_a_trust_region_is_that_of_verl(recorded, name):
    case = recorded("verl", name)
    inputs = case["inputs"]
    aggregation = "seq_mean_token_mean" if name == "gspo" else "token_mean"
    got = gradient(inputs, aggregation, trust_region=name, **within(inputs))
    tolerance = 1e-8 if name == "gspo" else EXACT  # verl adds 1e-8 to the number of tokens
    assert got == pytest.approx(tensor(case["results"]["gradient"]), rel=tolerance, abs=EXACT)
    is_beyond = (ratios(inputs) < 1 - inputs["low"]) | (ratios(inputs) > 1 + inputs["high"])
    assert (is_beyond & torch.tensor(inputs["mask"], dtype=torch.bool)).any()
    assert (got != 0).any()


@pytest.mark.parametrize(
    ("answer", "region", "aggregation"),
    [
        ("grpo", "ppo_clip", "seq_mean_token_mean"),
        ("dr_grpo", "ppo_clip", "token_sum_const"),
        ("dapo", "ppo_clip", "token_mean"),
        ("bnpo", "ppo_clip", "token_mean"),
        ("grpo, sequence ratios within 0.05", "gspo", "seq_mean_token_mean"),
        ("cispo, epsilon_high 5", "cispo", "token_mean"),
    ],
)
def test_the_gradient_of_a_loss_is_that_of_trl(recorded, answer, region, aggregation):
    case = recorded("trl", "losses")
    bounds = {
        "ppo_clip": within(case["inputs"]),
        "gspo": {"ratio_low": 0.95, "ratio_high": 1.05},
        "cispo": {"ratio_low": 0.0, "ratio_high": 5.0},
    }[region]
    got = gradient(case["inputs"], aggregation, trust_region=region, **bounds)
    assert got == close(case["results"][answer])
    mask = torch.tensor(case["inputs"]["mask"], dtype=torch.bool)
    num_stopped = int((got[mask] == 0).sum())
    assert (num_stopped == 0) == (region == "cispo")
    assert num_stopped < int(mask.sum())


def test_disagreement_verl_stops_a_token_that_failed_and_became_much_likelier(recorded):
    """Dual clip (arXiv 1912.09729): verl's ppo_clip drops A < 0 with a ratio above 3.

    Ours is the objective of PPO and DAPO, which has no such bound: such a token is the one that
    most needs to be pushed back. Who fears the variance of a large ratio bounds it on both sides
    and whatever the sign (dis), or bounds the weight and keeps the token (cispo).
    """
    case = recorded("verl", "ppo_clip, large ratios")
    inputs = case["inputs"]
    assert inputs["dual_clip"] == 3.0
    ours = gradient(inputs, trust_region="ppo_clip", **within(inputs))
    mask = torch.tensor(inputs["mask"], dtype=torch.bool)
    is_failure = tensor(inputs["advantages"])[:, None] < 0
    is_dropped = mask & is_failure & (ratios(inputs) > 3.0)
    assert int(is_dropped.sum()) == 2
    assert torch.where(is_dropped, 0.0, ours) == close(case["results"]["gradient"])
    assert (ours[is_dropped] > 0).all()  # down goes what failed
    assert torch.where(is_dropped, ours, 0.0).max() == ours.max()


def test_disagreement_verl_bounds_the_ratio_of_dppo_by_three(recorded):
    """verl's dppo_tv bounds the ratio by 20, but its configuration sets 3, the dual clip's bound.

    Ours leaves the ratio as it is. Both tokens here failed and became likelier: a bounded weight
    pushes them back less, the further they went.
    """
    case = recorded("verl", "dppo_tv, large ratios")
    inputs = case["inputs"]
    ours = gradient(inputs, trust_region="dppo_tv", **within(inputs))
    bounded = ours * ratios(inputs).clamp(max=3.0) / ratios(inputs)
    assert bounded == close(case["results"]["gradient"])
    assert int((ours.abs() > 1.01 * bounded.abs()).sum()) == 2


def test_disagreement_trl_reads_the_bound_of_cispo_as_the_ratio_itself(recorded):
    """`epsilon_high` 0.28 is a ratio of 1.28 in TRL's other losses, and of 0.28 in its cispo.

    Ours names ratios, low and high, in every region. With 0.28 as the ratio every token of an
    on-policy batch is cut to 28 % of its gradient, and ratios say nothing any more.
    """
    case = recorded("trl", "losses")
    inputs = case["inputs"]
    theirs = tensor(case["results"]["cispo"])
    as_meant = gradient(inputs, trust_region="cispo", ratio_low=0.0, ratio_high=1.28)
    as_read = gradient(inputs, trust_region="cispo", ratio_low=0.0, ratio_high=0.28)
    assert theirs == pytest.approx(as_read)
    kept = torch.tensor(inputs["mask"], dtype=torch.bool)
    assert (theirs / as_meant)[kept].max() < 1.0
    plain = -tensor(inputs["advantages"])[:, None] / kept.sum()
    assert (theirs / plain)[kept & (ratios(inputs) > 0.28)] == pytest.approx(0.28)


# The correction of the sampler, and bands on the total ratio.


@pytest.mark.parametrize("correction", ["tis", "mis"])
def test_a_corrected_sampler_beside_a_clipped_update_is_that_of_verl(recorded, correction):
    """verl calls mis IcePop with a lower bound of almost 0."""
    case = recorded("verl", "sampler correction")
    got = gradient(
        case["inputs"],
        proximal=case["inputs"]["proximal_logprobs"],
        trust_region="ppo_clip",
        ratio_low=0.9,
        ratio_high=1.1,
        sampler_correction=correction,
        sampler_cap=1.2,
    )
    assert got == close(case["results"][correction])
    other = {"tis": "mis", "mis": "tis"}[correction]
    assert got != close(case["results"][other])


@pytest.mark.parametrize("name", ["dis", "icepop"])
def test_a_band_on_the_total_ratio_is_icepop_of_verl_and_weighs_by_the_ratio(recorded, name):
    """Inside the band a token weighs its ratio; SkyRL's mask of tokens would weigh it 1."""
    case = recorded("verl", "sampler correction")
    inputs = case["inputs"]
    got = gradient(inputs, trust_region=name, ratio_low=0.7, ratio_high=1.6)
    assert got == close(case["results"]["icepop"])
    kept = got != 0
    mask = torch.tensor(inputs["mask"], dtype=torch.bool)
    assert 0 < int(kept.sum()) < int(mask.sum())
    by_one = -tensor(inputs["advantages"])[:, None] / mask.sum()
    assert (got / by_one)[kept] == pytest.approx(ratios(inputs)[kept])
    assert (ratios(inputs)[kept] - 1).abs().max() > 0.2


def test_disagreement_the_bounds_of_icepop_belong_to_its_band_and_those_of_dis_do_not(recorded):
    """Ours are strict, as SAO writes them; a ratio on a bound is an accident of rounding."""
    theirs = recorded("verl", "sampler correction")["results"]
    assert theirs["icepop, ratios 2 and 0.5 in [0.5, 2]"] == [[2.0, 0.5]]
    log_ratios = [tensor(2.0).log().item(), tensor(0.5).log().item()]
    inputs = {
        "mask": [[1, 1]],
        "behavior_logprobs": [[0.0, 0.0]],
        "logprobs": [log_ratios],
        "advantages": [1.0],
    }
    got = gradient(inputs, trust_region="icepop", ratio_low=0.5, ratio_high=2.0)
    assert got.tolist() == [[0.0, 0.0]]


def test_disagreement_the_default_correction_of_trl_weighs_a_long_trajectory_as_a_whole(recorded):
    """`sequence_mask` with a cap of 3: one ratio, the product over all tokens.

    Ours acts on tokens. With a log-ratio of standard deviation 0.02 per token, which is rounding
    alone, the product over 100,000 tokens has a log of standard deviation 6.3: no trajectory keeps
    a weight near 1, and most lose all of it. No token leaves the default's band.
    """
    assert recorded("trl", "losses")["results"]["defaults"] == {"mode": "sequence_mask", "cap": 3.0}
    random = np.random.default_rng(0)
    log_ratio = random.normal(scale=0.02, size=(32, 100_000)) - 0.02**2 / 2
    of_trajectory = np.exp(log_ratio.sum(axis=1))
    kept = np.where(of_trajectory <= 3.0, of_trajectory, 0.0)
    assert np.sum((kept > 0.5) & (kept < 2.0)) <= 1
    assert kept.sum() ** 2 / (len(kept) * np.square(kept).sum()) < 0.1
    ratio = np.exp(log_ratio)
    default = LossSettings()
    assert ((ratio > default.ratio_low) & (ratio < default.ratio_high)).all()
    assert ratio.sum() ** 2 / (ratio.size * np.square(ratio).sum()) > 0.999


def test_rloo_of_trl_on_policy_is_a_sum_over_tokens_and_a_mean_over_trajectories(recorded):
    case = recorded("trl", "losses")
    on_policy = {**case["inputs"], "behavior_logprobs": case["inputs"]["logprobs"]}
    got = gradient(on_policy, "seq_mean_token_sum")
    assert got == close(case["results"]["rloo, on-policy"])


def test_disagreement_rloo_of_trl_clips_the_product_of_all_ratios_of_a_trajectory(recorded):
    """Off-policy, TRL's RLOO stops whole trajectories by the product of their tokens' ratios.

    Ours (the preset rloo) bounds each token's ratio: the product leaves any fixed bound as
    trajectories grow, here after a few tokens already.
    """
    case = recorded("trl", "losses")
    inputs = case["inputs"]
    mask = torch.tensor(inputs["mask"], dtype=torch.bool)
    product = torch.where(mask, ratios(inputs), 1.0).prod(1, keepdim=True)
    advantages = tensor(inputs["advantages"])[:, None]
    is_past = ((advantages > 0) & (product > 1.28)) | ((advantages < 0) & (product < 0.8))
    expected = torch.where(is_past | ~mask, 0.0, -product * advantages) / len(mask)
    theirs = tensor(case["results"]["rloo"])
    assert theirs == pytest.approx(expected)
    ours = gradient(inputs, "seq_mean_token_sum", trust_region="dis")
    assert int((theirs[mask] == 0).sum()) >= int((ours[mask] == 0).sum())
    in_band = (ratios(inputs) > 0.2) & (ratios(inputs) < 4.0)
    assert ((ours != 0) == (in_band & mask)).all()


# Divergences.


@pytest.mark.parametrize("name", KL_ESTIMATORS)
def test_a_divergence_and_its_gradient_are_those_of_verl(recorded, name):
    case = recorded("verl", "divergence")
    log_ratios = tensor(case["inputs"]["log_ratios"][:-1]).requires_grad_()
    estimate = KL_ESTIMATORS[name](-log_ratios)
    estimate.sum().backward()
    assert estimate.detach() == close(case["results"][name]["value"][:-1])
    assert log_ratios.grad == close(case["results"][name]["gradient"][:-1])


def test_disagreement_verl_lets_go_of_a_token_whose_divergence_is_above_ten(recorded):
    """At log pi / mu = -4, k3 is 49.6; verl says 10, and its gradient is 0.

    Ours has no clamp, as TRL has none: the token that went furthest would be the one that
    nothing pulls back. What is large is bounded by the learner, which clips the gradient's norm.
    """
    verl = recorded("verl", "divergence")
    trl = recorded("trl", "divergence")
    assert verl["inputs"] == trl["inputs"]
    log_ratios = tensor(verl["inputs"]["log_ratios"]).requires_grad_()
    estimate = KL_ESTIMATORS["k3"](-log_ratios)
    estimate.sum().backward()
    assert float(estimate[-1].detach()) == pytest.approx(49.598, abs=1e-3)
    assert verl["results"]["k3"]["value"][-1] == 10.0
    assert verl["results"]["k3"]["gradient"][-1] == 0.0
    assert log_ratios.grad == close(trl["results"]["k3"])
    assert float(log_ratios.grad[-1]) == pytest.approx(-53.598, abs=1e-3)


def test_disagreement_trl_weighs_its_divergence_by_the_ratio(recorded):
    """By default TRL differentiates ratio * k3: ratio * log(ratio), k2's gradient weighed.

    That is KL(pi || mu) without bias on tokens of mu, at the price of a pull of 218 on a token that
    became e^4 times likelier and of 0.07 on one that became as much rarer. Ours weighs nothing: k2
    pulls both by 4, and has no bias at ratio 1, near which the trust region keeps the tokens.
    """
    case = recorded("trl", "divergence")
    log_ratios = tensor(case["inputs"]["log_ratios"]).requires_grad_()
    KL_ESTIMATORS["k2"](-log_ratios).sum().backward()
    weighed = log_ratios.grad * log_ratios.detach().exp()
    theirs = tensor(case["results"]["k3, corrected"])
    assert theirs == close(weighed.tolist())
    assert log_ratios.grad[-2:].tolist() == [4.0, -4.0]
    assert theirs[-2:] == pytest.approx(tensor([218.39, -0.07326]), rel=1e-4)
