"""Checkpoint folders: what is written is what is read, and what cannot be read says why."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.checkpoint import CheckpointError, load, load_shape, save
from model.hybrid import build_model
from model.presets import tiny


@pytest.fixture
def folder(tmp_path):
    save(build_model(tiny(), seed=0), tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def test_a_stored_model_loads_in_float32_and_is_under_four_megabytes(folder):
    assert (folder / "model.safetensors").stat().st_size < 4e6
    loaded = load(folder)
    assert load_shape(folder) == tiny()
    for name, tensor in build_model(tiny(), seed=0).state_dict().items():
        stored = loaded.state_dict()[name]
        assert stored.dtype == torch.float32
        keeps = name.endswith(("A_log", "dt_bias", "conv1d.weight"))
        assert torch.equal(stored, tensor if keeps else tensor.bfloat16().float()) or (
            name.endswith("gate.weight") and torch.equal(stored, tensor)
        )


def test_saving_a_loaded_model_again_changes_nothing(folder, tmp_path):
    save(load(folder), tmp_path / "again")
    first, second = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "again"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_float32_storage_is_exact(tmp_path):
    built = build_model(tiny(), seed=0)
    save(built, tmp_path, dtype=torch.float32)
    loaded = load(tmp_path).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in built.state_dict().items())


def rewrite(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def break_shape(weights):
    weights["lm_head.weight"] = torch.zeros(3, 3)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "no config.json in it"),
        (lambda f: (f / "model.safetensors").unlink(), "no model.safetensors in it"),
        (lambda f: (f / "config.json").write_text("{"), "config.json is not usable"),
        (lambda f: (f / "config.json").write_text("[]"), "config.json is not usable"),
        (lambda f: (f / "config.json").write_text("{}"), "incomplete"),
        (lambda f: (f / "model.safetensors").write_bytes(b"x" * 50), "is damaged"),
        (lambda f: rewrite(f, lambda w: w.pop("lm_head.weight")), "lacks lm_head.weight"),
        (lambda f: rewrite(f, lambda w: w.update(x=torch.zeros(1))), "has x, unknown"),
        (lambda f: rewrite(f, break_shape), r"lm_head.weight is \(3, 3\)"),
    ],
)
def test_a_damaged_folder_is_reported_in_one_line(folder, damage, message):
    damage(folder)
    with pytest.raises(CheckpointError, match=message) as error:
        load(folder)
    assert "\n" not in str(error.value)


def test_a_missing_folder_is_reported(tmp_path):
    with pytest.raises(CheckpointError, match="no such folder"):
        load(tmp_path / "nothing")


def test_a_configuration_of_another_kind_is_reported(folder):
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"gate_lower_bound": -9.0}))
    with pytest.raises(CheckpointError, match="gate_lower_bound"):
        load_shape(folder)
