"""What verl answers: outcome advantages, GAE, aggregations, policy losses and divergences.

Only `verl.trainer.ppo.core_algos` and the correction of the sampler are asked: pure functions that
need neither Ray nor a device.
"""

import recording
import torch
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos, rollout_corr_helper
from verl.workers.config import ActorConfig

SETTINGS = {"strategy": "fsdp", "rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1}
"""What a configuration must have and no loss reads."""
ROLLOUT = core_algos.compute_policy_loss_reinforce


def tensor(numbers):
    """Take in numbers as float64."""
    return torch.tensor(numbers, dtype=torch.float64)


def outcome_advantages(rewards, groups, mask):
    """Ask every outcome estimator; one number for each trajectory, from its first token."""
    mask = tensor(mask)
    scores = torch.zeros_like(mask)
    scores[:, 0] = tensor(rewards)
    arguments = {"token_level_rewards": scores, "response_mask": mask, "index": groups}
    answers = {
        "grpo": core_algos.compute_grpo_outcome_advantage(**arguments),
        "grpo without std": core_algos.compute_grpo_outcome_advantage(
            **arguments, norm_adv_by_std_in_grpo=False
        ),
        "rloo": core_algos.compute_rloo_outcome_advantage(**arguments),
        "reinforce++ baseline": core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage(
            **arguments
        ),
    }
    return {name: advantages[:, 0].tolist() for name, (advantages, _) in answers.items()}


def outcome_cases():
    """Two groups; trajectories alone in theirs; siblings that nearly agree."""
    mask = recording.tokens(seed=3, rows=7)["mask"]
    for name, rewards, groups in [
        ("outcomes", [1.0, 0.0, 0.5, 1.0, 0.0, 0.25, 0.0], recording.GROUPS),
        ("outcomes, two alone", [1.0, 0.25, 0.5, 0.75], [0, 1, 2, 2]),
        ("outcomes, nearly equal", [0.5, 0.5004, 0.4998, 0.5], [0, 0, 0, 0]),
        ("outcomes, equal", [0.7, 0.7, 0.7], [0, 0, 0]),
    ]:
        inputs = {"rewards": rewards, "groups": groups, "mask": mask[: len(rewards)]}
        yield name, {"inputs": inputs, "results": outcome_advantages(**inputs)}


def turn_cases():
    """One token for each turn, and one that was observed behind it, with a value that is noise."""
    inputs = recording.turns(seed=4)
    inputs["final_values"] = [0.0] * len(inputs["lengths"])
    lam, gamma = 0.8, 0.9
    rows, most = len(inputs["lengths"]), 2 * len(inputs["rewards"][0])
    mask = torch.zeros(rows, most, dtype=torch.float64)
    rewards, late = torch.zeros_like(mask), torch.zeros_like(mask)
    values = torch.full_like(mask, 3.0)
    for row, length in enumerate(inputs["lengths"]):
        mask[row, 0 : 2 * length : 2] = 1.0
    rewards[:, 0::2] = tensor(inputs["rewards"])
    late[:, 1::2] = tensor(inputs["rewards"])
    values[:, 0::2] = tensor(inputs["values"])
    results = {}
    for name, where in (("gae", rewards), ("gae, rewards on replies", late)):
        whitened, targets = core_algos.compute_gae_advantage_return(where, values, mask, gamma, lam)
        results[name] = (targets - values)[:, 0::2].tolist()
        results[f"{name}, whitened"] = whitened[:, 0::2].tolist()
    for discount in (1.0, gamma):
        whitened, to_go = core_algos.compute_reinforce_plus_plus_outcome_advantage(
            rewards, mask, AlgoConfig(gamma=discount)
        )
        results[f"reinforce++ returns, gamma {discount}"] = to_go[:, 0::2].tolist()
        results[f"reinforce++, gamma {discount}"] = whitened[:, 0::2].tolist()
    yield "turns", {"inputs": {**inputs, "lam": lam, "gamma": gamma}, "results": results}


def aggregation_cases():
    """Gradients of the aggregated loss by the tokens' losses: a weight for each token."""
    inputs = {**recording.tokens(seed=5), "most": 10}
    mask = tensor(inputs["mask"])
    results = {}
    for mode in ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean"):
        results[mode] = weights(mask, loss_agg_mode=mode)
    results["seq-mean-token-sum-norm"] = weights(
        mask, loss_agg_mode="seq-mean-token-sum-norm", loss_scale_factor=10
    )
    halves = (mask[:2], mask[2:])
    count = int(mask.sum())
    results["token-mean, two micro-batches"] = [
        [weight / 2 for weight in row]
        for half in halves
        for row in weights(half, loss_agg_mode="token-mean")
    ]
    results["token-mean, two micro-batches, all tokens known"] = [
        row
        for half in halves
        for row in weights(half, loss_agg_mode="token-mean", batch_num_tokens=count)
    ]
    yield "aggregation", {"inputs": inputs, "results": results}


def weights(mask, **options):
    """Return what each token's loss counts."""
    losses = torch.zeros_like(mask, requires_grad=True)
    core_algos.agg_loss(losses, mask, **options).backward()
    return losses.grad.tolist()


def loss_cases():
    """Gradients of policy losses by the log-probs."""
    for name, seed, spread, loss, aggregation, settings in [
        ("ppo_clip", 6, 0.4, "vanilla", "token-mean", (0.2, 0.28)),
        ("ppo_clip, large ratios", 11, 2.0, "vanilla", "token-mean", (0.2, 0.28)),
        ("gspo", 8, 0.3, "gspo", "seq-mean-token-mean", (0.05, 0.1)),
        ("cispo", 9, 0.5, "cispo", "token-mean", (0.2, 0.28)),
        ("dppo_tv", 10, 1.0, "dppo_tv", "token-mean", (0.1, 0.1)),
        ("dppo_tv, large ratios", 11, 2.0, "dppo_tv", "token-mean", (0.1, 0.1)),
    ]:
        inputs = {**recording.tokens(seed, spread=spread), "low": settings[0], "high": settings[1]}
        config = ActorConfig(
            **SETTINGS,
            clip_ratio=settings[0],
            clip_ratio_low=settings[0],
            clip_ratio_high=settings[1],
        )
        function = core_algos.get_policy_loss_fn(loss)
        answer = gradient(function, inputs, inputs["behavior_logprobs"], aggregation, config)
        inputs["dual_clip"] = config.clip_ratio_c
        yield name, {"inputs": inputs, "results": {"gradient": answer}}


def gradient(function, inputs, reference, aggregation, config, is_weights=None):
    """Differentiate a policy loss by the log-probs, [B, T]."""
    live = tensor(inputs["logprobs"]).requires_grad_()
    mask = tensor(inputs["mask"])
    advantages = tensor(inputs["advantages"])[:, None].expand_as(mask)
    arguments = (tensor(reference), live, advantages, mask, aggregation, config)
    loss, _ = function(*arguments, rollout_is_weights=is_weights)
    loss.backward()
    return live.grad.tolist()


def correction_cases():
    """Weights of the sampler beside a clipped update, and alone on the total ratio."""
    inputs = recording.tokens(seed=26, spread=0.6)
    inputs["proximal_logprobs"] = recording.numbers(
        (tensor(inputs["behavior_logprobs"]) + 2 * tensor(inputs["logprobs"])) / 3
    )
    mask = tensor(inputs["mask"])
    behavior, proximal = tensor(inputs["behavior_logprobs"]), tensor(inputs["proximal_logprobs"])
    config = ActorConfig(**SETTINGS, clip_ratio_low=0.1, clip_ratio_high=0.1)
    results = {}
    for name, threshold in (("tis", "1.2"), ("mis", "0.000001_1.2")):
        factor, _ = rollout_corr_helper.compute_rollout_correction_weights(
            proximal - behavior, mask, rollout_is_threshold=threshold
        )
        results[name] = gradient(
            core_algos.get_policy_loss_fn("vanilla"),
            inputs,
            inputs["proximal_logprobs"],
            "token-mean",
            config,
            factor,
        )
    total = tensor(inputs["logprobs"]) - behavior
    factor, _ = rollout_corr_helper.compute_rollout_correction_weights(
        total, mask, rollout_is_threshold="0.7_1.6"
    )
    results["icepop"] = gradient(
        ROLLOUT, inputs, inputs["behavior_logprobs"], "token-mean", config, factor
    )
    on_the_bound, _ = rollout_corr_helper.compute_rollout_correction_weights(
        tensor([[2.0, 0.5]]).log(), tensor([[1.0, 1.0]]), rollout_is_threshold="0.5_2.0"
    )
    results["icepop, ratios 2 and 0.5 in [0.5, 2]"] = on_the_bound.tolist()
    yield "sampler correction", {"inputs": inputs, "results": results}


def divergence_cases():
    """Estimates of KL(pi || mu) and their gradients; the last two tokens are far off."""
    log_ratios = [0.0, 0.3, -0.3, 1.2, -1.2, 4.0, -4.0]
    results = {}
    for name in ("k1", "k2", "k3"):
        live = tensor(log_ratios).requires_grad_()
        estimate = core_algos.kl_penalty(live, torch.zeros_like(live), name)
        estimate.sum().backward()
        results[name] = {"value": estimate.tolist(), "gradient": live.grad.tolist()}
    yield "divergence", {"inputs": {"log_ratios": log_ratios}, "results": results}


if __name__ == "__main__":
    PARTS = (
        outcome_cases,
        turn_cases,
        aggregation_cases,
        loss_cases,
        correction_cases,
        divergence_cases,
    )
    recording.record("verl", ["verl", "torch"], {n: c for part in PARTS for n, c in part()})
