"""Checkpoint folders: what is written is what is read, and what cannot be read says why."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.checkpoint import CheckpointError, load, load_shape, require_loadable, save
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


def cut_in_half(folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def write_index(folder, places):
    text = json.dumps({"metadata": {}, "weight_map": places})
    (folder / "model.safetensors.index.json").write_text(text)


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
        (lambda f: rewrite(f, break_shape), r"lm_head.weight is \[3, 3\], the model has \[1024"),
        (cut_in_half, "model.safetensors is damaged"),
        (lambda f: (f / "model.safetensors.index.json").write_text("{}"), "index.json is not us"),
        (lambda f: write_index(f, {"x": "gone.safetensors"}), "no gone.safetensors in it"),
        (lambda f: write_index(f, {"x": "model.safetensors"}), "model.safetensors lacks x"),
    ],
)
@pytest.mark.parametrize("look", [load, require_loadable])
def test_a_damaged_folder_is_reported_in_one_line(folder, damage, message, look):
    damage(folder)
    with pytest.raises(CheckpointError, match=message) as error:
        look(folder)
    assert "\n" not in str(error.value)


def test_a_missing_folder_is_reported(tmp_path):
    with pytest.raises(CheckpointError, match="no such folder"):
        load(tmp_path / "nothing")


def test_a_configuration_of_another_kind_is_reported(folder):
    values = json.loads((folder / "config.json").read_text())
    values["linear_attn_config"]["gate_lower_bound"] = -9.0
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="gate_lower_bound"):
        load_shape(folder)


def test_a_sound_checkpoint_is_known_without_reading_a_weight(folder, monkeypatch):
    monkeypatch.setattr("model.checkpoint._read", None)
    require_loadable(folder)


def test_at_most_ten_tensors_are_named_and_the_others_counted(folder):
    def damage(weights):
        for name in [name for name in weights if ".experts." in name][:7]:
            del weights[name]
        for number in range(5):
            weights[f"surplus.{number}"] = torch.zeros(1)
        weights["lm_head.weight"] = torch.zeros(3, 3)

    rewrite(folder, damage)
    with pytest.raises(CheckpointError, match=r"; and 3 more$") as error:
        load(folder)
    text = str(error.value)
    assert text.count("it lacks model.layers.") == 7
    assert text.count("unknown to the model") == 3
    assert "\n" not in text


def publish(folder, target):
    """Rewrite a checkpoint of ours as one with a vision tower is published."""
    config = json.loads((folder / "config.json").read_text())
    del config["architectures"], config["head_dim"], config["num_key_value_heads"]
    wrapper = {"model_type": "kimi_k3", "text_config": config | {"model_type": "kimi_linear"}}
    target.mkdir()
    (target / "config.json").write_text(json.dumps(wrapper))
    weights = {
        f"language_model.{name}": torch.cat([w, torch.full((12,), 99.0)])
        if name.endswith("A_log")
        else w
        for name, w in load_file(folder / "model.safetensors").items()
    }
    weights["vision_tower.patch_embed.proj.weight"] = torch.zeros(2, 2)
    weights["mm_projector.proj.0.weight"] = torch.zeros(2, 2)
    names = sorted(weights)
    places = {}
    for number, start in enumerate(range(0, len(names), 70), 1):
        shard = f"model-{number:05}-of-00003.safetensors"
        part = {name: weights[name] for name in names[start : start + 70]}
        save_file(part, target / shard)
        places |= dict.fromkeys(part, shard)
    write_index(target, places)


def test_a_published_checkpoint_in_shards_below_its_prefix_loads(tmp_path):
    built = build_model(tiny(), seed=0)
    for name, parameter in built.named_parameters():
        if name.endswith("A_log"):
            torch.nn.init.normal_(parameter)
    save(built, tmp_path / "ours")
    publish(tmp_path / "ours", tmp_path / "published")
    published, ours = load(tmp_path / "published").state_dict(), load(tmp_path / "ours")
    assert len(list((tmp_path / "published").glob("*.safetensors"))) == 3
    for name, tensor in ours.state_dict().items():
        assert torch.equal(published[name], tensor), name
    assert published["model.layers.0.self_attn.A_log"].shape == (4,)


def test_only_the_decay_rates_may_be_padded(folder):
    def damage(weights):
        weights["model.norm.weight"] = torch.ones(160)
        weights["model.layers.0.self_attn.A_log"] = torch.zeros(3)

    rewrite(folder, damage)
    with pytest.raises(CheckpointError, match=r"A_log is \[3\].*norm.weight is \[160\]"):
        load(folder)


def pack_experts(folder):
    """Store the routed experts in four bits, rounded down to what these can say; return them."""
    weights = load_file(folder / "model.safetensors")
    rounded = {}
    generator = torch.Generator().manual_seed(0)
    for name in [name for name in weights if ".experts." in name]:
        rows, columns = weights.pop(name).shape
        halves = torch.randint(0, 16, (rows, columns), generator=generator, dtype=torch.uint8)
        scales = torch.randint(120, 131, (rows, columns // 32), generator=generator).byte()
        weights[f"{name}_packed"] = halves[:, ::2] | (halves[:, 1::2] << 4)
        weights[f"{name}_scale"] = scales
        table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        signs = 1.0 - 2.0 * (halves >> 3).float()
        powers = torch.ldexp(torch.ones(rows, columns // 32), scales.int() - 127)
        rounded[name] = signs * table[(halves & 7).int()] * powers.repeat_interleave(32, 1)
    save_file(weights, folder / "model.safetensors")
    return rounded


def test_routed_experts_of_four_bits_are_unpacked(folder):
    rounded = pack_experts(folder)
    loaded = load(folder).state_dict()
    assert len(rounded) == 72
    for name, tensor in rounded.items():
        assert torch.equal(loaded[name], tensor), name


def test_packed_experts_without_their_scales_are_reported(folder):
    pack_experts(folder)
    name = "model.layers.1.block_sparse_moe.experts.0.w1.weight"
    rewrite(folder, lambda weights: weights.pop(f"{name}_scale"))
    with pytest.raises(CheckpointError, match=rf"lacks {name}; it has {name}_packed, unknown"):
        load(folder)
