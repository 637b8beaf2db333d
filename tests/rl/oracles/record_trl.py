"""What TRL answers: advantages of GRPO and RLOO, and the losses of its GRPO trainer.

TRL has no pure functions for these: they are methods of its trainers. So a trainer is made around a
model of one tiny layer; what would generate, grade and score is replaced by the numbers of a case.
This project's lock has TRL, so its own environment runs this script.
"""

import tempfile

import recording
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

CLIP_LOW, CLIP_HIGH = 0.2, 0.28
MOST = 10
"""The trainer's `max_completion_length`."""


def tensor(numbers):
    """Take in numbers as float64."""
    return torch.tensor(numbers, dtype=torch.float64)


def make_trainer(kind, config, folder, **options):
    """Build a trainer whose generation, rewards and log-probs are those of a case."""

    class Scripted(kind):
        """Says what it is told."""

        case_rewards = None
        case_logprobs = None

        def _generate(self, prompts):
            words = [[1] for _ in prompts]
            answers = [[2, 3] for _ in prompts]
            if kind is RLOOTrainer:
                return words, answers, ["b c"] * len(prompts)
            return words, answers, None, ["b c"] * len(prompts), None, {}, None, None

        def _calculate_rewards(self, *_arguments):
            return tensor(self.case_rewards)[:, None]

        def _get_per_token_logps_and_entropies(self, *arguments, **keywords):
            if self.case_logprobs is None:
                return super()._get_per_token_logps_and_entropies(*arguments, **keywords)
            return self.case_logprobs, torch.zeros_like(self.case_logprobs), None

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"[PAD]": 0, "a": 1, "b": 2, "c": 3}, "a")),
        pad_token="[PAD]",
        eos_token="[PAD]",
    )
    return Scripted(
        model=GPT2LMHeadModel(GPT2Config(vocab_size=4, n_embd=8, n_layer=1, n_head=1)),
        args=config(
            output_dir=folder,
            report_to=[],
            use_cpu=True,
            bf16=False,
            max_completion_length=MOST,
            epsilon=CLIP_LOW,
            epsilon_high=CLIP_HIGH,
            **options,
        ),
        processing_class=tokenizer,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_list([{"prompt": "a"}]),
    )


def make_loss_trainer(kind, config, folder):
    """Build a trainer to ask for losses: one micro-batch makes a step, no reference model."""
    trainer = make_trainer(
        kind, config, folder, num_generations=2, per_device_train_batch_size=4, beta=0.0
    )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def make_advantages(kind, config, rewards, siblings, **options):
    """Ask a trainer for the advantages of groups of `siblings`; a reward of nan: not scorable."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(
            kind,
            config,
            folder,
            num_generations=siblings,
            per_device_train_batch_size=len(rewards),
            **options,
        )
        trainer.case_rewards = rewards
        trainer.model.train()
        scored = trainer._generate_and_score_completions([{"prompt": "a"}] * len(rewards))
    return scored["advantages"].tolist()


def advantage_cases():
    """Two groups of three; one with members that could not be scored; siblings nearly agree."""
    nan = float("nan")
    for name, rewards, siblings in [
        ("outcomes", [1.0, 0.0, 0.5, 1.0, 0.0, 0.25], 3),
        ("outcomes, some invalid", [1.0, nan, 0.5, nan, nan, 0.25, nan, nan, nan], 3),
        ("outcomes, nearly equal", [0.5, 0.5004, 0.4998, 0.5], 4),
    ]:
        inputs = {
            "rewards": [None if reward != reward else reward for reward in rewards],
            "groups": [place // siblings for place in range(len(rewards))],
        }
        results = {
            f"grpo, scale {scale}": make_advantages(
                GRPOTrainer, GRPOConfig, rewards, siblings, scale_rewards=scale
            )
            for scale in ("group", "batch", "none")
        }
        results["rloo"] = make_advantages(RLOOTrainer, RLOOConfig, rewards, siblings, beta=0.0)
        yield name, {"inputs": inputs, "results": results}


def loss_cases():
    """Gradients of losses by the log-probs, under every aggregation that TRL names."""
    inputs = {**recording.tokens(seed=20), "low": CLIP_LOW, "high": CLIP_HIGH, "most": MOST}
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_loss_trainer(GRPOTrainer, GRPOConfig, folder)
        results = {
            name: loss_gradient(trainer, inputs, name)
            for name in ("grpo", "dr_grpo", "dapo", "bnpo", "cispo")
        }
        trainer.epsilon_high = 5.0
        results["cispo, epsilon_high 5"] = loss_gradient(trainer, inputs, "cispo")
        trainer.epsilon_high = CLIP_HIGH
        results["bnpo, two micro-batches"] = [
            [number / 2 for number in row]
            for part in (slice(0, 1), slice(1, 4))
            for row in loss_gradient(trainer, inputs, "bnpo", part)
        ]
        trainer.importance_sampling_level = "sequence"
        trainer.epsilon_low = trainer.epsilon_high = 0.05
        results["grpo, sequence ratios within 0.05"] = loss_gradient(trainer, inputs, "grpo")
        results["defaults"] = {
            "mode": GRPOConfig.vllm_importance_sampling_mode,
            "cap": GRPOConfig.vllm_importance_sampling_clip_max,
        }
        trainer = make_loss_trainer(RLOOTrainer, RLOOConfig, folder)
        results["rloo"] = loss_gradient(trainer, inputs, "rloo")
        on_policy = {**inputs, "behavior_logprobs": inputs["logprobs"]}
        results["rloo, on-policy"] = loss_gradient(trainer, on_policy, "rloo")
    yield "losses", {"inputs": inputs, "results": results}


def divergence_cases():
    """The estimate of KL(pi || reference) that is added to the loss; the last tokens are far off.

    The loss is bnpo's: a mean over the tokens, with advantages of 0.
    """
    log_ratios = [0.0, 0.3, -0.3, 1.2, -1.2, 4.0, -4.0]
    mask = [[1] * len(log_ratios)]
    inputs = {
        "mask": mask,
        "behavior_logprobs": [[0.0] * len(log_ratios)],
        "logprobs": [log_ratios],
        "advantages": [0.0],
    }
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_loss_trainer(GRPOTrainer, GRPOConfig, folder)
        trainer.beta = 1.0
        for name, is_corrected in (("k3", False), ("k3, corrected", True)):
            trainer.args.use_bias_correction_kl = is_corrected
            [row] = loss_gradient(trainer, inputs, "bnpo")
            results[name] = [number * len(log_ratios) for number in row]
    yield "divergence", {"inputs": {"log_ratios": log_ratios}, "results": results}


def loss_gradient(trainer, inputs, loss_type, part=slice(None)):
    """Differentiate a loss by the log-probs of some rows, [B, T]."""
    live = tensor(inputs["logprobs"])[part].requires_grad_()
    mask = torch.tensor(inputs["mask"])[part]
    trainer.loss_type = loss_type
    trainer.case_logprobs = live
    behavior = tensor(inputs["behavior_logprobs"])[part]
    loss = trainer._compute_loss(
        trainer.model,
        {
            "prompt_ids": torch.zeros(len(live), 1, dtype=torch.int64),
            "prompt_mask": torch.ones(len(live), 1, dtype=torch.int64),
            "completion_ids": torch.zeros(live.shape, dtype=torch.int64),
            "completion_mask": mask,
            "advantages": tensor(inputs["advantages"])[part],
            "old_per_token_logps": behavior,
            "ref_per_token_logps": behavior,
            "old_logps": (behavior * mask).sum(1),
            "num_items_in_batch": mask.sum(),
        },
    )
    loss.backward()
    return live.grad.tolist()


if __name__ == "__main__":
    # Or what is computed from whole numbers and Python's floats would be float32.
    torch.set_default_dtype(torch.float64)
    PARTS = (advantage_cases, loss_cases, divergence_cases)
    recording.record(
        "trl", ["trl", "transformers", "torch"], {n: c for part in PARTS for n, c in part()}
    )
