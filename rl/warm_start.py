"""The warm start: supervised training of a new model on demonstrations, through TRL's SFTTrainer.

Takes the configuration, returns a checkpoint folder: weights, tokenizer and `warm_start.json`.

    experts play -> demonstrations (text) -> tokenizer is trained on their texts
                                          -> renderer -> input_ids, labels (-100 off the policy's)
    model.presets -> a new model -> SFTTrainer(input_ids, labels) -> checkpoint in bfloat16

Tokens and labels come from the renderer that also serves the rollouts, so there is no chat template
and nothing for the trainer to tokenize: `input_ids` and `labels` pass through it untouched. (A mask
column would not: SFTTrainer keeps `input_ids`, `labels` and `seq_lengths` and drops the rest
without a word.)
"""

import json
import logging
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
import transformers
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling, SFTTrainer

from envs.environment import Split
from model import checkpoint, presets
from model.balancing import QuantileBalancer
from model.hybrid import HybridForCausalLM, build_model
from rl.config import RunConfig, WarmStartSection
from rl.demonstrations import Demonstration, play_demonstrations
from rollout.renderer import demonstration_texts, demonstration_tokens
from rollout.tokenizer import END, FILE_NAME, PAD, Tokenizer

logger = logging.getLogger(__name__)

IGNORED = -100
"""Label of a token that the policy did not write: no loss."""
REPORT_NAME = "warm_start.json"
MIN_LEARNING_RATE_SHARE = 0.1
WARMUP_SHARE = 0.03
NUM_EVALUATIONS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStartReport:
    """What a warm start did: `warm_start.json` of the checkpoint folder."""

    preset: str
    seed: int
    warm_start: dict[str, Any]
    """The `warm_start` section, resolved."""
    environments: dict[str, Any]
    """The `environments` section, resolved."""
    num_parameters: int
    vocabulary_size: int
    """Tokens of the tokenizer that came out."""
    num_demonstrations: dict[str, int]
    """By environment."""
    num_held_out: int
    tokens_per_demonstration: float
    policy_token_share: float
    """Tokens that train / tokens."""
    num_updates: int
    trained_tokens: int
    seconds: float
    """Wall time of the training alone."""
    tokens_per_second: float
    held_out_loss: float
    """Nats per policy token, on held-out tasks."""
    held_out_accuracy: float
    """Share of the policy's tokens that are the most likely one, on held-out tasks."""


def warm_start(config: RunConfig, demonstrations_folder: Path | None = None) -> WarmStartReport:
    """Build `config.model.preset`, train it on demonstrations, and write `config.model.checkpoint`.

    The result depends on the configuration and its seed alone (on one machine and thread count).

    Args:
        config: Sections `warm_start`, `model`, `environments`, `run.seed`, `rollout.max_turns`.
        demonstrations_folder: Kept demonstrations; see `cache` of `play_demonstrations`.

    Returns:
        What was done, as also written beside the weights.

    Raises:
        ValueError: an environment has no expert, an episode is longer than `rollout.max_tokens`,
            the preset is unknown, or the folder of the checkpoint cannot be made.
    """
    section, folder = config.warm_start, config.model.checkpoint
    shape = presets.get_preset(config.model.preset, section.vocabulary_size)
    require_writable(folder)
    torch.set_num_threads(section.threads)
    train = play_demonstrations(config, Split.TRAIN, demonstrations_folder)
    held_out = play_demonstrations(config, Split.HELD_OUT, demonstrations_folder)
    tokenizer = train_tokenizer(train, section.vocabulary_size)
    train_rows = tokenize(train, tokenizer, config.rollout.max_tokens)
    held_out_rows = tokenize(held_out, tokenizer, config.rollout.max_tokens)

    model = build_model(shape, seed=config.run.seed)
    started = time.monotonic()
    num_updates, held_out_metrics = 0, {}
    for cycle in range(len(section.epochs)):
        seed = config.run.seed + cycle
        trainer = build_trainer(model, tokenizer, train_rows, held_out_rows, section, seed, cycle)
        num_updates += trainer.train().global_step
        held_out_metrics = trainer.evaluate()
    seconds = time.monotonic() - started

    num_tokens = sum(len(row["input_ids"]) for row in train_rows)
    num_policy = sum(label != IGNORED for row in train_rows for label in row["labels"])
    trained_tokens = round(num_tokens * sum(section.epochs))
    report = WarmStartReport(
        preset=config.model.preset,
        seed=config.run.seed,
        warm_start=section.model_dump(mode="json"),
        environments={k: v.model_dump(mode="json") for k, v in config.environments.items()},
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        vocabulary_size=tokenizer.vocabulary_size,
        num_demonstrations={
            name: sum(demonstration.environment == name for demonstration in train)
            for name in config.environments
        },
        num_held_out=len(held_out),
        tokens_per_demonstration=num_tokens / len(train_rows),
        policy_token_share=num_policy / num_tokens,
        num_updates=num_updates,
        trained_tokens=trained_tokens,
        seconds=seconds,
        tokens_per_second=trained_tokens / seconds,
        held_out_loss=held_out_metrics["eval_loss"],
        held_out_accuracy=held_out_metrics["eval_mean_token_accuracy"],
    )
    checkpoint.save(model, folder)
    tokenizer.save(folder)
    text = json.dumps(asdict(report), indent=2) + "\n"
    (folder / REPORT_NAME).write_text(text, encoding="utf-8")
    logger.info("%s: held-out loss %.4f", folder, report.held_out_loss)
    return report


def require_writable(folder: Path) -> None:
    """Make the folder of the checkpoint now: after an hour of training it would be a pity.

    Raises:
        ValueError: it cannot be made or written; one line.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"model.checkpoint = {folder}: {error.strerror}") from error


def train_tokenizer(demonstrations: Sequence[Demonstration], vocabulary_size: int) -> Tokenizer:
    """Learn the vocabulary from all texts of the demonstrations, as the renderer encodes them."""
    texts = (
        text
        for demonstration in demonstrations
        for text in demonstration_texts(demonstration.tools, demonstration.episode)
    )
    return Tokenizer.train(texts, vocabulary_size)


def tokenize(
    demonstrations: Sequence[Demonstration], tokenizer: Tokenizer, max_tokens: int
) -> list[dict[str, list[int]]]:
    """Render demonstrations to the two columns that train.

    Args:
        demonstrations: Text episodes.
        tokenizer: Of the policy.
        max_tokens: `rollout.max_tokens`: an episode that is longer could never be sampled.

    Returns:
        Rows `{"input_ids": [T], "labels": [T]}`; a label is the token itself where the policy wrote
        it and -100 elsewhere (the shift to the next token is the trainer's).

    Raises:
        ValueError: an episode has more than `max_tokens` tokens.
    """
    rows: list[dict[str, list[int]]] = []
    for demonstration in demonstrations:
        token_ids, mask = demonstration_tokens(
            tokenizer, demonstration.tools, demonstration.episode
        )
        if len(token_ids) > max_tokens:
            raise ValueError(
                f"demonstration of {demonstration.episode.task.id!r} has {len(token_ids)} tokens, "
                f"more than rollout.max_tokens = {max_tokens}: raise it, or shorten the texts"
            )
        labels = np.where(mask, token_ids, IGNORED)
        rows.append({"input_ids": token_ids.tolist(), "labels": labels.tolist()})
    return rows


def collator(tokenizer: Tokenizer) -> DataCollatorForLanguageModeling:
    """Return the collator: pads rows at the right, labels with -100, and changes nothing else."""
    return DataCollatorForLanguageModeling(pad_token_id=tokenizer.pad_id)


def build_trainer(
    model: HybridForCausalLM,
    tokenizer: Tokenizer,
    train_rows: Sequence[dict[str, list[int]]],
    held_out_rows: Sequence[dict[str, list[int]]],
    section: WarmStartSection,
    seed: int,
    cycle: int = 0,
) -> SFTTrainer:
    """Set up TRL's trainer: float32, AdamW, warm-up, cosine to a tenth, rows of like length.

    Args:
        model: Trained in place.
        tokenizer: Gives the padding token.
        train_rows: What to train on, from `tokenize`.
        held_out_rows: What to measure on.
        section: Batch size, peak of the learning rate, passes of each cycle, balancing.
        seed: Of the order of the rows.
        cycle: Which of `section.epochs`.
    """
    epochs = section.epochs[cycle]
    balancing = [BalanceExperts(QuantileBalancer(model))] if section.balance_experts else []
    num_updates = math.ceil(len(train_rows) / section.batch_size * epochs)
    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(
            output_dir=folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=section.batch_size,
            per_device_eval_batch_size=section.batch_size,
            train_sampling_strategy="group_by_length",
            learning_rate=section.learning_rate,
            lr_scheduler_type="cosine_with_min_lr",
            lr_scheduler_kwargs={"min_lr_rate": MIN_LEARNING_RATE_SHARE},
            warmup_steps=math.ceil(num_updates * WARMUP_SHARE),
            adam_beta2=0.95,
            weight_decay=0.01,
            max_grad_norm=1.0,
            bf16=False,
            gradient_checkpointing=False,
            packing=False,
            max_length=None,
            eval_strategy="steps",
            eval_steps=max(1, num_updates // NUM_EVALUATIONS),
            prediction_loss_only=True,
            logging_steps=max(1, num_updates // 100),
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
            seed=seed,
        )
        trainer = SFTTrainer(
            model=model,
            args=arguments,
            train_dataset=datasets.Dataset.from_list(list(train_rows)),
            eval_dataset=datasets.Dataset.from_list(list(held_out_rows)),
            data_collator=collator(tokenizer),
            processing_class=_as_transformers(tokenizer),
            callbacks=[LogToLogger(), *balancing],
        )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


class LogToLogger(transformers.TrainerCallback):
    """Sends the trainer's figures to the log, instead of the standard output."""

    def on_log(
        self,
        args: transformers.TrainingArguments,
        state: transformers.TrainerState,
        control: transformers.TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: object,
    ) -> None:
        """Log one line: update, then each figure."""
        del args, control
        shown = ("loss", "mean_token_accuracy", "eval_loss", "eval_mean_token_accuracy")
        figures = " ".join(f"{key} {float(logs[key]):.4f}" for key in shown if logs and key in logs)
        if figures:
            logger.info("update %d of %d: %s", state.global_step, state.max_steps, figures)


class BalanceExperts(transformers.TrainerCallback):
    """Sets the routers' corrections after each update, from the tokens that it trained on."""

    def __init__(self, balancer: QuantileBalancer) -> None:
        self._balancer = balancer

    def on_step_end(
        self,
        args: transformers.TrainingArguments,
        state: transformers.TrainerState,
        control: transformers.TrainerControl,
        **_: object,
    ) -> None:
        """Take the corrections that serve from the next update on."""
        del args, state, control
        self._balancer.update()


def _as_transformers(tokenizer: Tokenizer) -> transformers.PreTrainedTokenizerFast:
    """Wrap the tokenizer as the trainer wants one: it takes only the pad token from it."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(Path(folder))
        return transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(Path(folder) / FILE_NAME), pad_token=PAD, eos_token=END
        )
