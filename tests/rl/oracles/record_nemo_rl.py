"""What NeMo-RL answers: its GRPO and REINFORCE++ on outcomes, and GAE that carries over replies.

Usage: record_nemo_rl.py CHECKOUT, with torch, pydantic and transformers installed. Two files of the
checkout are loaded, the estimators and the functions that they call; what these import beside that
is the business of tokenizers, loggers and losses, and is a stub.
"""

import sys

import recording
import torch

ADDRESS = "https://github.com/NVIDIA-NeMo/RL"
UNUSED = (
    "nemo_rl.data.chat_templates:COMMON_CHAT_TEMPLATES",
    "nemo_rl.models.policy:TokenizerConfig",
    "nemo_rl.utils.fastokens:maybe_patch_fastokens",
    "nemo_rl.utils.logger:Logger",
    "nemo_rl.algorithms.loss:ClippedPGLossConfig",
)
LAM, GAMMA = 0.8, 0.9
ALPHA = 0.3
"""Of the length-adaptive window: trajectories of three turns look nowhere ahead."""


class WithoutKl:
    """The part of a loss configuration that estimators read: no divergence in the reward."""

    use_kl_in_reward = False
    reference_policy_kl_penalty = 0.0
    reference_policy_kl_type = "k3"


def tensor(numbers):
    """Take in numbers as float64."""
    return torch.tensor(numbers, dtype=torch.float64)


def outcome_cases(estimators):
    """Two groups; trajectories alone in theirs. One number each: all tokens get the same."""
    settings = {
        "grpo, by default": {},
        "grpo, not normalized": {"normalize_rewards": False},
        "grpo, with self": {"use_leave_one_out_baseline": False},
        "grpo, with self, not normalized": {
            "use_leave_one_out_baseline": False,
            "normalize_rewards": False,
        },
    }
    for name, rewards, groups in [
        ("outcomes", [1.0, 0.0, 0.5, 1.0, 0.0, 0.25, 0.0], recording.GROUPS),
        ("outcomes, two alone", [1.0, 0.25, 0.5, 0.75], [0, 1, 2, 2]),
        ("outcomes, one success", [1.0, 0.0, 0.0, 0.0], [0, 0, 0, 0]),
    ]:
        prompts, mask = torch.tensor(groups)[:, None], torch.ones(len(groups), 1)
        results = {}
        for answer, changes in settings.items():
            config = estimators.AdvEstimatorConfig(**changes)
            estimator = estimators.GRPOAdvantageEstimator(config, WithoutKl)
            advantages = estimator.compute_advantage(prompts, tensor(rewards), mask)
            results[answer] = advantages[:, 0].tolist()
        yield name, {"inputs": {"rewards": rewards, "groups": groups}, "results": results}


def turn_cases(estimators):
    """Outcomes on turns of one token, replies between them with values that are noise."""
    inputs = recording.turns(seed=27)
    inputs["final_values"] = [0.0] * len(inputs["lengths"])
    for row, length in enumerate(inputs["lengths"]):
        inputs["rewards"][row][: length - 1] = [0.0] * (length - 1)
    _, values, mask = map(tensor, recording.with_replies(inputs))
    outcomes = tensor(inputs["rewards"]).sum(1)
    results = {}
    for name, changes in {
        "gae": {},
        "gae, decoupled": {"gae_lambda_value": 1.0, "gae_lambda_policy": LAM},
        "gae, length-adaptive": {"length_adaptive_alpha": ALPHA},
    }.items():
        config = {
            "gae_lambda": LAM,
            "gae_gamma": GAMMA,
            "normalize_advantages": False,
            "gae_lambda_value": None,
            "gae_lambda_policy": None,
            "length_adaptive_alpha": 0.0,
        }
        estimator = estimators.GeneralizedAdvantageEstimator(config | changes, WithoutKl)
        advantages, targets = estimator.compute_advantage(None, outcomes, mask, values)
        results[name] = advantages[:, 0::2].tolist()
        results[f"{name}, targets"] = targets[:, 0::2].tolist()
    inputs |= {"lam": LAM, "gamma": GAMMA, "alpha": ALPHA}
    yield "turns", {"inputs": inputs, "results": results}


if __name__ == "__main__":
    # Or its matrices of ones would be float32.
    torch.set_default_dtype(torch.float64)
    CHECKOUT = sys.argv[1]
    recording.load(CHECKOUT, "nemo_rl.algorithms.utils", UNUSED)
    ESTIMATORS = recording.load(CHECKOUT, "nemo_rl.algorithms.advantage_estimator")
    CASES = {n: c for part in (outcome_cases, turn_cases) for n, c in part(ESTIMATORS)}
    recording.record("nemo_rl", ["torch"], CASES, {ADDRESS: recording.commit_of(CHECKOUT)})
