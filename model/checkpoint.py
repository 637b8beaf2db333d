"""Checkpoint folders: `config.json` and safetensors, small on disk, float32 in memory.

Written as `model.safetensors`; read from that or from shards with an index, with the published
names: those of `Decoder` and its head, or the same below LANGUAGE_MODEL.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from model.config import ModelConfig
from model.hybrid import HybridConfig, HybridForCausalLM
from model.mxfp4 import GROUP, unpack

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
LANGUAGE_MODEL = "language_model."
"""Prefix of the text model's names where a checkpoint also holds a vision tower."""
VISION = ("vision_tower.", "mm_projector.")
"""Prefixes of what a text model leaves unread."""
PADDED = "A_log"
"""End of the names of tensors that published checkpoints pad: 128 entries for 96 heads."""
PACKED, SCALE = "_packed", "_scale"
"""Ends of the two names that a weight of four bits is stored under."""
MAX_NAMED = 10
"""Tensors that one error names; the others are counted."""
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
    """Read a checkpoint, ours or a published one, into a float32 model.

    Weights of four bits are unpacked; training goes on with what they stand for.

    Raises:
        CheckpointError: the folder or a file is missing, damaged, or of another model.
    """
    folder = Path(folder)
    model = HybridForCausalLM(HybridConfig.from_shape(load_shape(folder)))
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    stored = find_tensors(folder)
    require_fit(folder, stored, expected)
    raw = _read(folder, stored)
    weights: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        weight = raw.pop(tensor.key)
        if tensor.scale is not None:
            weight = unpack(weight, raw.pop(tensor.scale.key))
        weights[name] = _narrow(weight, expected[name])
    model.load_state_dict(weights)
    return model.eval()


def require_loadable(folder: Path | str) -> None:
    """Check that `load` would take a checkpoint, from the headers of its files alone.

    Raises:
        CheckpointError: as `load` would raise it, but for damage inside the weights.
    """
    folder = Path(folder)
    with torch.device("meta"):
        model = HybridForCausalLM(HybridConfig.from_shape(load_shape(folder)))
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    require_fit(folder, find_tensors(folder), expected)


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


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies in a checkpoint."""

    file: str
    """Name of the safetensors file."""
    key: str
    """Name in that file: the model's, or with LANGUAGE_MODEL before it."""
    shape: tuple[int, ...]
    """Of the numbers, also where two of them lie in a byte."""
    scale: "StoredTensor | None" = None
    """Where the scales lie, if the numbers are packed to four bits."""


def find_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Find a checkpoint's tensors by the model's names, in one file or in shards.

    Those of a vision tower and its projector are left out.

    Raises:
        CheckpointError: the folder or its weights are missing or damaged.
    """
    stored: dict[str, StoredTensor] = {}
    for file_name, keys in _files(folder).items():
        with _opened(folder, file_name) as file:
            present = set(file.keys())
            for key in present if keys is None else keys:
                if key.startswith(VISION):
                    continue
                if key not in present:
                    raise CheckpointError(f"checkpoint {folder}: {file_name} lacks {key}")
                name = key.removeprefix(LANGUAGE_MODEL)
                if name in stored:
                    raise CheckpointError(f"checkpoint {folder}: {name} is stored twice")
                shape = tuple(file.get_slice(key).get_shape())
                stored[name] = StoredTensor(file_name, key, shape)
    return _join_packed(stored)


def _join_packed(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Join packed numbers and their scales under the name of the weight they make."""
    joined = dict(stored)
    for name, packed in stored.items():
        scale_name = name.removesuffix(PACKED) + SCALE
        scale = stored.get(scale_name)
        if not name.endswith(PACKED) or scale is None:
            continue
        *rows, num_bytes = packed.shape
        if scale.shape == (*rows, num_bytes * 2 // GROUP):
            del joined[name], joined[scale_name]
            whole = replace(packed, shape=(*rows, num_bytes * 2), scale=scale)
            joined[name.removesuffix(PACKED)] = whole
    return joined


def _read(folder: Path, stored: Mapping[str, StoredTensor]) -> dict[str, Tensor]:
    """Read tensors, and scales, by the keys under which they are stored."""
    keys: dict[str, list[str]] = {}
    for tensor in stored.values():
        for part in (tensor, tensor.scale):
            if part is not None:
                keys.setdefault(part.file, []).append(part.key)
    found: dict[str, Tensor] = {}
    for file_name, names in keys.items():
        with _opened(folder, file_name) as file:
            found |= {key: file.get_tensor(key) for key in names}
    return found


def require_fit(
    folder: Path, stored: Mapping[str, StoredTensor], expected: Mapping[str, Sequence[int]]
) -> None:
    """Check names and shapes of stored tensors against a model's.

    Raises:
        CheckpointError: some do not fit; names MAX_NAMED of them and counts the others.
    """
    problems = [f"it lacks {name}" for name in sorted(expected.keys() - stored.keys())]
    problems += [
        f"it has {name}, unknown to the model" for name in sorted(stored.keys() - expected.keys())
    ]
    problems += [
        f"{name} is {list(tensor.shape)}, the model has {list(expected[name])}"
        for name, tensor in sorted(stored.items())
        if name in expected and not _fits(name, tensor.shape, tuple(expected[name]))
    ]
    if problems:
        more = f"; and {len(problems) - MAX_NAMED} more" if len(problems) > MAX_NAMED else ""
        named = "; ".join(problems[:MAX_NAMED])
        raise CheckpointError(f"checkpoint {folder}: {named}{more}")


def _fits(name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    is_padded = name.endswith(PADDED) and len(found) == 1 and found > expected
    return found == expected or is_padded


def _narrow(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Cut padding off the first dimension: the real entries come first."""
    return tensor[: shape[0]] if shape else tensor


def _files(folder: Path) -> dict[str, list[str] | None]:
    """Return each file of weights with the names to read from it; None is all of them."""
    if not (folder / INDEX).is_file():
        _require(folder, WEIGHTS)
        return {WEIGHTS: None}
    files: dict[str, list[str] | None] = {}
    try:
        places = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        for key, file_name in places.items():
            keys = files.setdefault(Path(file_name).name, [])
            assert keys is not None
            keys.append(key)
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise CheckpointError(f"checkpoint {folder}: {INDEX} is not usable: {error}") from error
    return files


@contextmanager
def _opened(folder: Path, name: str) -> Iterator[Any]:
    path = _require(folder, name)
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        text = " ".join(str(error).split())
        raise CheckpointError(f"checkpoint {folder}: {name} is damaged: {text}") from error


def _require(folder: Path, name: str) -> Path:
    if not folder.is_dir():
        raise CheckpointError(f"checkpoint {folder}: no such folder")
    if not (folder / name).is_file():
        raise CheckpointError(f"checkpoint {folder}: no {name} in it")
    return folder / name
