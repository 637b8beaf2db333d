"""From a run to a Hugging Face folder: what `limosa export` does.

The names and layouts of our tensors are the published ones, so an export copies the weights as they
are and writes what the reader of the folder needs around them. No tensor is loaded.
"""

import json
import shutil
from enum import StrEnum
from pathlib import Path
from typing import Any

from model.config import ModelConfig
from rl.checkpoint_files import CHECKPOINT_FILES, PUBLISHED_MODEL_TYPE, check_checkpoint
from rl.run import Run
from rollout.tokenizer import END, PAD, Tokenizer

PUBLISHED_ARCHITECTURE = "KimiLinearForCausalLM"
"""The text model of Kimi K3 in vLLM, without the vision tower that Kimi K3 as a whole asks for."""
MAX_POSITIONS = 1 << 20
"""Tokens of context that an exported configuration declares: the model has no positions."""


class ExportFormat(StrEnum):
    """Who reads the folder."""

    KIMI_LINEAR = "kimi-linear"
    """vLLM's own implementation, and others of the published architecture: no Limosa needed."""
    LIMOSA = "limosa"
    """Limosa and, where it is installed, transformers: a verified copy."""


def export_checkpoint(
    folder: Path,
    target: Path,
    step: int | None = None,
    form: ExportFormat = ExportFormat.KIMI_LINEAR,
) -> Path:
    """Write a checkpoint to the new folder `target`.

    Args:
        folder: a run, or a checkpoint folder itself.
        target: a folder that does not exist, or is empty.
        step: which checkpoint of a run; None is the last one.
        form: who is to read it.

    Returns:
        The folder of the checkpoint that was exported.

    Raises:
        ValueError: there is no such checkpoint, it is damaged, or `target` holds files.
    """
    source = find_checkpoint(folder, step)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} exists and is not an empty folder: choose another name")
    check_checkpoint(source)
    target.mkdir(parents=True, exist_ok=True)
    for name in CHECKPOINT_FILES:
        shutil.copyfile(source / name, target / name)
    if form is ExportFormat.KIMI_LINEAR:
        values = json.loads((source / "config.json").read_text(encoding="utf-8"))
        tokenizer = Tokenizer.load(source)
        written = {
            "config.json": published_config(ModelConfig.from_json(values), tokenizer),
            "tokenizer_config.json": {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": END,
                "pad_token": PAD,
                "model_max_length": MAX_POSITIONS,
            },
            "generation_config.json": {
                "eos_token_id": tokenizer.end_id,
                "pad_token_id": tokenizer.pad_id,
                "do_sample": True,
            },
        }
        for name, content in written.items():
            text = json.dumps(content, indent=2) + "\n"
            (target / name).write_text(text, encoding="utf-8")
    return source


def find_checkpoint(folder: Path, step: int | None) -> Path:
    """Return the folder of a checkpoint: `folder` itself, or one of a run.

    Raises:
        ValueError: there is none, or none of that step.
    """
    if (folder / "model.safetensors").is_file():
        if step is not None:
            raise ValueError(f"{folder} is one checkpoint, not a run: it has no step {step}")
        return folder
    run = Run.open(folder)
    checkpoints = run.checkpoints()
    if not checkpoints:
        raise ValueError(f"{run.folder} has no checkpoint yet")
    chosen = max(checkpoints) if step is None else step
    if chosen not in checkpoints:
        known = ", ".join(map(str, checkpoints))
        raise ValueError(f"{run.folder} has no checkpoint of step {chosen}, only of {known}")
    return checkpoints[chosen]


def published_config(shape: ModelConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the `config.json` under which vLLM builds its own class for a shape."""
    return {
        "architectures": [PUBLISHED_ARCHITECTURE],
        "model_type": PUBLISHED_MODEL_TYPE,
        "dtype": "bfloat16",
        **shape.to_json(),
        "num_key_value_heads": shape.num_attention_heads,
        "num_nextn_predict_layers": 0,
        "max_position_embeddings": MAX_POSITIONS,
        "bos_token_id": None,
        "eos_token_id": tokenizer.end_id,
        "pad_token_id": tokenizer.pad_id,
    }
