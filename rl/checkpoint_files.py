"""The files of a checkpoint, looked at without loading a tensor: is the folder whole and sound?"""

import json
import math
from pathlib import Path
from typing import Any

from rollout.tokenizer import Tokenizer

CHECKPOINT_FILES = ("config.json", "model.safetensors", "tokenizer.json")
"""What a checkpoint folder holds: the layout of Hugging Face."""
EMBEDDING = "model.embed_tokens.weight"
PUBLISHED_MODEL_TYPE = "kimi_linear"
"""`model_type` of a checkpoint for vLLM's own implementation, which needs a GPU."""
_ITEM_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "I8": 1, "U8": 1}


def check_checkpoint(folder: Path) -> None:
    """Check that a checkpoint is complete and that its files fit each other.

    Raises:
        ValueError: a file is missing, cut short, not readable, or the weights, the configuration
            and the tokenizer disagree.
    """
    if not folder.is_dir():
        raise ValueError(
            f"{folder}: no such checkpoint folder: `limosa warm-start` makes one, or set "
            "model.checkpoint"
        )
    for name in CHECKPOINT_FILES:
        if not (folder / name).is_file():
            raise ValueError(f"{folder} is not a checkpoint: it has no {name}")
    config = _read_json_object(folder / "config.json")
    if config.get("model_type") == PUBLISHED_MODEL_TYPE:
        raise ValueError(
            f"{folder} is made for other engines (model_type {PUBLISHED_MODEL_TYPE}): export it "
            "with --format limosa to go on with it here"
        )
    shapes = read_shapes(folder / "model.safetensors")
    if EMBEDDING not in shapes:
        raise ValueError(f"{folder / 'model.safetensors'}: it has no {EMBEDDING}")
    expected = [config.get("vocab_size"), config.get("hidden_size")]
    if shapes[EMBEDDING] != expected:
        raise ValueError(
            f"{folder}: {EMBEDDING} has shape {shapes[EMBEDDING]}, but config.json says {expected}"
        )
    num_layers = len({name.split(".")[2] for name in shapes if name.startswith("model.layers.")})
    if num_layers != config.get("num_hidden_layers"):
        raise ValueError(
            f"{folder}: model.safetensors has {num_layers} layers, but config.json says "
            f"{config.get('num_hidden_layers')}"
        )
    vocabulary = Tokenizer.load(folder).vocabulary_size
    if vocabulary > shapes[EMBEDDING][0]:
        raise ValueError(
            f"{folder}: tokenizer.json has {vocabulary} tokens, the model only "
            f"{shapes[EMBEDDING][0]}"
        )


def read_shapes(path: Path) -> dict[str, list[int]]:
    """Read the names and shapes of a safetensors file from its header.

    Raises:
        ValueError: the header is damaged, or the file is shorter or longer than it says.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        header_size = int.from_bytes(file.read(8), "little")
        if not 2 <= header_size <= size - 8:
            raise ValueError(f"{path}: not a safetensors file, or cut short")
        header = file.read(header_size)
    try:
        entries: dict[str, dict[str, Any]] = dict(json.loads(header))
        entries.pop("__metadata__", None)
        sizes = {
            name: math.prod(entry["shape"]) * _ITEM_BYTES.get(entry["dtype"], 0)
            for name, entry in entries.items()
        }
        places = {name: (*map(int, entry["data_offsets"]),) for name, entry in entries.items()}
        end = max((stop for _, stop in places.values()), default=0)
    except (ValueError, TypeError, LookupError, AttributeError):
        raise ValueError(f"{path}: the safetensors header is damaged") from None
    for name, (start, stop) in places.items():
        if stop - start != sizes[name]:
            raise ValueError(f"{path}: {name} is damaged: its size does not fit its shape")
    if size != 8 + header_size + end:
        raise ValueError(f"{path}: {size} bytes, but its header says {8 + header_size + end}")
    return {name: entry["shape"] for name, entry in entries.items()}


def _read_json_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path}: not a JSON object")  # noqa: TRY004  bad input
    return value
