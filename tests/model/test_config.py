"""Model shapes: round trip through JSON, and what they refuse."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from model.config import ModelConfig
from model.presets import get_preset, k3, tiny


def test_json_round_trip_keeps_every_field():
    shape = tiny(512)
    assert ModelConfig.from_json(json.loads(json.dumps(shape.to_json()))) == shape


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"full_attn_layers": (3,)}, "end with the last layer"),
        ({"full_attn_layers": ()}, "end with the last layer"),
        ({"full_attn_layers": (3, 2, 4)}, "must increase"),
        ({"gate_lower_bound": -6.0}, "outside"),
        ({"gate_lower_bound": 0.0}, "outside"),
        ({"kv_lora_rank": 16}, "below 32"),
        ({"num_experts_per_token": 9}, "exceeds num_experts"),
        ({"hidden_size": 0}, "hidden_size = 0 must be positive"),
        ({"first_k_dense_replace": 5}, "exceeds num_hidden_layers"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(tiny(), **change)


def test_an_incomplete_or_mistyped_json_is_refused():
    values = tiny().to_json()
    with pytest.raises(ValueError, match="hidden_size = 'wide'"):
        ModelConfig.from_json(values | {"hidden_size": "wide"})
    with pytest.raises(ValueError, match="full_attn_layers = 4"):
        ModelConfig.from_json(with_linear(values, full_attn_layers=4))
    with pytest.raises(ValueError, match=r"lacks hidden_size, rms_norm_eps"):
        ModelConfig.from_json(without(values, "hidden_size", "rms_norm_eps"))
    with pytest.raises(ValueError, match="linear_attn_config = None"):
        ModelConfig.from_json(without(values, "linear_attn_config"))


def with_linear(values, **changes):
    return values | {"linear_attn_config": values["linear_attn_config"] | changes}


def without(values, *names):
    return {name: value for name, value in values.items() if name not in names}


def published_k3():
    """The text model's fields as published, typed out here a second time."""
    full = [4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 64, 68, 72, 76, 80, 84, 88]
    full += [92, 93]
    return {
        "model_type": "kimi_linear",
        "vocab_size": 163840,
        "hidden_size": 7168,
        "intermediate_size": 33792,
        "num_hidden_layers": 93,
        "num_attention_heads": 96,
        "num_key_value_heads": 96,
        "hidden_act": "situ",
        "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "num_experts": 896,
        "num_experts_per_token": 16,
        "num_shared_experts": 2,
        "moe_intermediate_size": 3072,
        "routed_expert_hidden_size": 3584,
        "latent_moe_use_norm": True,
        "moe_router_activation_func": "sigmoid",
        "moe_renormalize": True,
        "routed_scaling_factor": 1.0,
        "topk_method": "noaux_tc",
        "num_expert_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "num_nextn_predict_layers": 1,
        "attn_res_block_size": 12,
        "max_position_embeddings": 1048576,
        "linear_attn_config": {
            "full_attn_layers": full,
            "kda_layers": [layer for layer in range(1, 94) if layer not in full],
            "head_dim": 128,
            "num_heads": 96,
            "short_conv_kernel_size": 4,
            "gate_lower_bound": -5.0,
            "use_full_rank_gate": True,
        },
    }


def test_the_published_text_configuration_is_the_k3_preset():
    assert ModelConfig.from_json(published_k3()) == k3()
    written, published = k3().to_json(), published_k3()
    assert written == {name: published[name] for name in written}


def test_the_text_configuration_below_a_vision_tower_is_read():
    wrapped = {"model_type": "kimi_k3", "text_config": published_k3(), "vision_config": {}}
    assert ModelConfig.from_json(wrapped) == k3()


@pytest.mark.parametrize(
    "name",
    ["hidden_act", "mla_use_nope", "mla_use_output_gate", "latent_moe_use_norm"],
)
def test_what_an_absent_field_asks_for_is_refused(name):
    with pytest.raises(ValueError, match=rf"{name} = .* \(it is absent\) is not implemented"):
        ModelConfig.from_json(without(published_k3(), name))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mla_use_nope": False}, "mla_use_nope = False is not implemented, only True"),
        ({"hidden_act": "silu"}, "hidden_act = 'silu' is not implemented, only 'situ'"),
        ({"num_expert_group": 8}, "num_expert_group = 8 is not implemented, only 1"),
        ({"moe_router_activation_func": "softmax"}, "softmax"),
        ({"topk_method": "greedy"}, "greedy"),
        ({"routed_scaling_factor": 2.446}, "2.446"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"quantization_config": {"format": "pack-quantized"}}, "format = 'pack-quantized'"),
        ({"text_config": {"quantization_config": {"format": "x"}}}, "format = 'x'"),
    ],
)
def test_what_is_not_implemented_is_refused_in_one_line(change, message):
    with pytest.raises(ValueError, match=message) as error:
        ModelConfig.from_json(published_k3() | change)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_full_rank_gate": False}, "low-rank gate"),
        ({"gate_lower_bound": None}, "lacks gate_lower_bound"),
        ({"gate_lower_bound": -6}, "outside"),
        ({"num_heads": 32}, "num_heads = 32"),
        ({"kda_layers": [1, 2, 3]}, "are not the layers that full_attn_layers leaves"),
        ({"full_attn_layers": [0, 4, 92, 93]}, "must lie in 1 .. 93"),
    ],
)
def test_a_linear_attention_that_is_not_ours_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_json(with_linear(published_k3(), **change))


def test_layers_are_counted_from_one_and_the_last_is_global():
    shape = k3()
    global_layers = [layer for layer in range(93) if shape.is_full_attention(layer)]
    assert global_layers == [*range(3, 92, 4), 92]
    assert [shape.has_experts(layer) for layer in (0, 1, 92)] == [False, True, True]


def test_the_configuration_beside_the_quickstart_weights_is_the_tiny_preset():
    folder = Path(__file__).parents[2] / "configs" / "quickstart-checkpoint"
    values = json.loads((folder / "config.json").read_text())
    assert ModelConfig.from_json(values) == tiny()
    written = tiny().to_json()
    assert {name: values[name] for name in written} == written


def test_an_unknown_preset_is_refused():
    with pytest.raises(ValueError, match="there is: tiny"):
        get_preset("huge", 1024)


def test_shapes_are_importable_without_torch_or_transformers():
    code = (
        "import sys, model.config, model.presets;"
        "assert not {'torch', 'transformers', 'vllm', 'ray'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
