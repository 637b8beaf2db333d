"""Checkpoint folders: `config.json` and `model.safetensors`, small on disk, float32 in memory."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from model.config import ModelConfig
from model.hybrid import HybridConfig, HybridForCausalLM

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
KEPT_FLOAT32 = ("A_log", "dt_bias", "conv1d.weight", "gate.weight", "e_score_correction_bias")
"""Ends of the names whose rounding moves log-probabilities most: stored as they are."""


class CheckpointError(ValueError):
    """A checkpoint folder that cannot be read; the message is one line that says why."""


def save(model: HybridForCausalLM, folder: Path | str, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write a checkpoint that `load` and `AutoModelForCausalLM.from_pretrained` read.

    The configuration declares float32 whatever `dtype` is: weights are stored small and computed
    wide.

    Args:
        model: The model.
        folder: Made if missing; a checkpoint in it is replaced.
        dtype: Of the stored weights, but for those in KEPT_FLOAT32.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = HybridConfig.from_shape(model.config.shape)
    config.dtype = torch.float32
    weights = {
        name: tensor.to(torch.float32 if name.endswith(KEPT_FLOAT32) else dtype).contiguous()
        for name, tensor in model.state_dict().items()
    }
    written = folder / f"{WEIGHTS}.part"
    save_file(weights, written, metadata={"format": "pt"})
    written.replace(folder / WEIGHTS)
    config.save_pretrained(folder)


def load(folder: Path | str) -> HybridForCausalLM:
    """Read a checkpoint into a float32 model.

    Raises:
        CheckpointError: the folder or a file is missing, damaged, or of another model.
    """
    folder = Path(folder)
    model = HybridForCausalLM(HybridConfig.from_shape(load_shape(folder)))
    weights = load_weights(folder)
    expected = model.state_dict()
    for name in expected.keys() | weights.keys():
        if name not in weights:
            raise CheckpointError(f"checkpoint {folder}: {WEIGHTS} lacks {name}")
        if name not in expected:
            raise CheckpointError(
                f"checkpoint {folder}: {WEIGHTS} has {name}, unknown to the model"
            )
        if expected[name].shape != weights[name].shape:
            raise CheckpointError(
                f"checkpoint {folder}: {name} is {tuple(weights[name].shape)}, the model has "
                f"{tuple(expected[name].shape)}"
            )
    model.load_state_dict(weights)
    return model.eval()


def load_shape(folder: Path | str) -> ModelConfig:
    """Read a checkpoint's shape.

    Raises:
        CheckpointError: the folder or its configuration is missing, damaged, or of another model.
    """
    path = _require(Path(folder), CONFIG)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return ModelConfig.from_json(values)
    except (ValueError, AttributeError, TypeError) as error:
        raise CheckpointError(f"checkpoint {folder}: {CONFIG} is not usable: {error}") from error


def load_weights(folder: Path | str) -> dict[str, Tensor]:
    """Read a checkpoint's tensors by name, as stored.

    Raises:
        CheckpointError: the folder or its weights are missing or damaged.
    """
    path = _require(Path(folder), WEIGHTS)
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"checkpoint {folder}: {WEIGHTS} is damaged: {error}") from error


def _require(folder: Path, name: str) -> Path:
    if not folder.is_dir():
        raise CheckpointError(f"checkpoint {folder}: no such folder")
    if not (folder / name).is_file():
        raise CheckpointError(f"checkpoint {folder}: no {name} in it")
    return folder / name
