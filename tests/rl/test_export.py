"""What vLLM's own implementation of the published architecture reads in an exported folder.

Its model package needs a GPU to be imported, so its configuration class is loaded from its file and
its table of names is read from its source.
"""

import ast
import importlib.util
import json
import struct
from pathlib import Path

import pytest

from model.config import ModelConfig
from model.presets import tiny
from rl.cli import build_parser
from rl.export import ExportFormat, export_checkpoint

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart-checkpoint"
FLOAT32 = ("A_log", "dt_bias", "conv1d.weight", "gate.weight", "e_score_correction_bias")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    target = tmp_path_factory.mktemp("export") / "policy"
    assert export_checkpoint(QUICKSTART, target) == QUICKSTART
    return target


@pytest.fixture(scope="module")
def tensors(exported):
    """Names, dtypes and shapes of the exported tensors."""
    with (exported / "model.safetensors").open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return header


@pytest.fixture(scope="module")
def vllm_folder():
    spec = importlib.util.find_spec("vllm")
    if spec is None:
        pytest.skip("vLLM is not installed")
    return Path(spec.submodule_search_locations[0])


def test_the_configuration_is_one_of_vllms_own_class(exported, vllm_folder):
    path = vllm_folder / "transformers_utils/configs/kimi_linear.py"
    spec = importlib.util.spec_from_file_location("kimi_linear_config", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    values = json.loads((exported / "config.json").read_text())
    config = module.KimiLinearConfig(**values)
    assert config.architectures == ["KimiLinearForCausalLM"]
    assert [config.is_kda_layer(layer) for layer in range(4)] == [True, True, True, False]
    assert config.is_mla
    assert config.is_moe
    assert config.is_linear_attn
    assert config.eos_token_id == 7
    assert ModelConfig.from_json(config.to_dict()) == tiny()
    known = vars(module.KimiLinearConfig()).keys() | {"architectures", "dtype"}
    assert values.keys() <= known, "a field that vLLM would not read"


def tables_of_names(source):
    """The entries (parameter, part of a name, shard) of `load_weights`, with their conditions."""
    entries = []
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Tuple) and len(node.elts) == 3:
            parameter, part, shard = node.elts
            if all(
                isinstance(x, ast.Constant) and str(x.value)[:1] == "." for x in (parameter, part)
            ):
                number = shard.value if isinstance(shard, ast.Constant) else 5  # beta_shard_id
                entries.append((parameter.value, part.value, number))
    assert entries
    return entries


def expected_parameters(latent_projections):
    """vLLM's parameters of a tiny model, and the shards that make each up."""
    whole = [None]
    norms = ("input_layernorm", "post_attention_layernorm", "self_attention_res_norm")
    norms += ("self_attention_res_proj", "mlp_res_norm", "mlp_res_proj")
    kda = {"in_proj_qkvgfab.weight": [0, 1, 2, 3, 4, 5], "conv1d.weight": [0, 1, 2]}
    kda |= dict.fromkeys(("f_b_proj.weight", "o_norm.weight", "o_proj.weight"), whole)
    kda |= dict.fromkeys(("A_log", "dt_bias"), whole)
    mla = dict.fromkeys(("q_a_layernorm", "q_b_proj", "kv_a_layernorm", "kv_b_proj"), whole)
    mla = {f"{name}.weight": shards for name, shards in (mla | {"o_proj": whole}).items()}
    mla |= latent_projections
    gated = {"gate_up_proj.weight": [0, 1], "down_proj.weight": whole}
    routed = ("gate.weight", "gate.e_score_correction_bias", "routed_expert_norm.weight")
    routed += ("routed_expert_down_proj.weight", "routed_expert_up_proj.weight")
    moe = dict.fromkeys(routed, whole)
    moe |= {f"shared_experts.{name}": shards for name, shards in gated.items()}
    moe |= {f"experts.{e}.w{n}.weight": whole for e in range(8) for n in (1, 2, 3)}
    ends = ("embed_tokens", "norm", "output_attn_res_norm", "output_attn_res_proj")
    expected = dict.fromkeys((f"model.{name}.weight" for name in ends), whole)
    expected["lm_head.weight"] = whole
    for layer in range(4):
        name = f"model.layers.{layer}."
        expected |= {f"{name}{norm}.weight": whole for norm in norms}
        mixing = mla if layer == 3 else kda
        expected |= {f"{name}self_attn.{part}": shards for part, shards in mixing.items()}
        kind, forward = ("mlp", gated) if layer == 0 else ("block_sparse_moe", moe)
        expected |= {f"{name}{kind}.{part}": shards for part, shards in forward.items()}
    return expected


LATENT_PROJECTIONS = {
    "nvidia/model.py": {"fused_qkv_a_g_proj.weight": [0, 1, 2]},
    "amd/linear.py": {"fused_qkv_a_proj.weight": [0, 1], "g_proj.weight": [None]},
}


@pytest.mark.parametrize("source", LATENT_PROJECTIONS)
def test_vllms_table_of_names_fills_every_parameter_once(source, tensors, vllm_folder):
    path = vllm_folder / "models/kimi_k3" / source
    expected = expected_parameters(LATENT_PROJECTIONS[source])
    found = {}
    for name in tensors:
        parameter, shard = name, None
        for fused, part, number in tables_of_names(path):
            if part in name and name.replace(part, fused) in expected:
                parameter, shard = name.replace(part, fused), number
                break
        found.setdefault(parameter, []).append(shard)
    assert {name: sorted(shards, key=str) for name, shards in found.items()} == expected
    text = "".join(module.read_text() for module in path.parent.glob("*.py"))
    for name in expected:  # the parameters exist under these names in vLLM's classes
        attribute = name.removesuffix(".weight").rsplit(".", 1)[-1]
        assert f".{attribute} " in text or attribute in ("w1", "w2", "w3", "b_proj"), name


def test_layouts_are_those_that_vllms_loaders_take(tensors):
    for name, entry in tensors.items():
        assert entry["dtype"] == ("F32" if name.endswith(FLOAT32) else "BF16"), name
    layer = "model.layers.0.self_attn."
    assert tensors[f"{layer}A_log"]["shape"] == [4]
    assert tensors[f"{layer}dt_bias"]["shape"] == [128]
    assert tensors[f"{layer}q_conv1d.weight"]["shape"] == [128, 1, 4]


def test_transformers_reads_the_tokenizer(exported):
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(exported)
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 7)


def test_the_limosa_format_is_a_copy_of_a_checkpoint_folder(tmp_path):
    export_checkpoint(QUICKSTART, tmp_path / "copy", form=ExportFormat.LIMOSA)
    for path in (tmp_path / "copy").iterdir():
        assert path.read_bytes() == (QUICKSTART / path.name).read_bytes()
    assert len(list((tmp_path / "copy").iterdir())) == 3


def test_what_cannot_be_exported_is_said(exported, tmp_path):
    with pytest.raises(ValueError, match="one checkpoint, not a run: it has no step 3"):
        export_checkpoint(QUICKSTART, tmp_path / "x", step=3)
    with pytest.raises(ValueError, match="not a run folder"):
        export_checkpoint(tmp_path, tmp_path / "x")
    with pytest.raises(ValueError, match="made for other engines"):
        export_checkpoint(exported, tmp_path / "x")


def test_the_command_line_offers_every_format():
    parser = build_parser()
    for form in ExportFormat:
        arguments = parser.parse_args(["export", "run", "out", "--format", form])
        assert ExportFormat(arguments.format) is form
    assert parser.parse_args(["export", "run", "out"]).format == "kimi-linear"
