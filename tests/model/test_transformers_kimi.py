"""Transformers' own `kimi_linear` as an oracle, where the two architectures agree.

They share convolutions, unit queries and keys, the delta rule, the gated norm, and latent attention
without positions. They differ in what is arranged here: transformers' decay is not bounded (its
gate is replaced), its output gate is of low rank (ours becomes the product of the two factors), its
latent attention has no output gate (ours is held at one half), and the norms in there have an
epsilon of 1e-6 (set to ours). Transformers computes norms, softmax and the delta rule in float32,
so the bounds are those of float32. `pytest -s` prints the differences.
"""

import sys
from dataclasses import replace

import pytest
import torch
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.kimi_linear.configuration_kimi_linear import KimiLinearConfig

from model.decoder import init_module
from model.delta_layer import KDALayer
from model.mixer import PackedMixer
from model.mla_layer import MLALayer
from model.presets import tiny

SHAPE = replace(tiny(), num_hidden_layers=8, full_attn_layers=(4, 8), qk_rope_head_dim=16)
NUM_TOKENS = 150
KDA_BOUND, MLA_BOUND = 5e-6, 2e-6
"""Largest difference of outputs whose scale is about one."""


@pytest.fixture(scope="module")
def config():
    """The same sizes and layer pattern in transformers' words."""
    config = KimiLinearConfig(
        **{
            name: getattr(SHAPE, name)
            for name in (
                "vocab_size",
                "hidden_size",
                "num_hidden_layers",
                "num_attention_heads",
                "q_lora_rank",
                "kv_lora_rank",
                "qk_nope_head_dim",
                "qk_rope_head_dim",
                "v_head_dim",
                "rms_norm_eps",
            )
        },
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
        num_key_value_heads=SHAPE.num_attention_heads,
        linear_attn_config=SHAPE.to_json()["linear_attn_config"],
    )
    config._attn_implementation = "eager"
    return config


def bounded(gate, x):
    """The bounded decay, in place of transformers' -exp(A_log) softplus(z)."""
    heads = (*x.shape[:2], gate.num_heads, gate.head_dim)
    logits = (gate.f_b_proj(gate.f_a_proj(x)) + gate.dt_bias).view(heads)
    return -5.0 / (1.0 + torch.exp(-torch.exp(gate.A_log) * logits))


def theirs_of_kda(ours, config, monkeypatch):
    theirs = kimi.KimiLinearDeltaAttention(config, ours.layer)
    weights = dict(ours.state_dict())
    weights["conv1d.weight"] = torch.cat([weights.pop(f"{name}_conv1d.weight") for name in "qkv"])
    for name in ("f_a_proj.weight", "f_b_proj.weight", "dt_bias", "A_log"):
        weights[f"forget_gate.{name}"] = weights.pop(name)
    weights["forget_gate.A_log"] = weights["forget_gate.A_log"].view(1, 1, -1, 1)
    weights["g_a_proj.weight"], weights["g_b_proj.weight"] = low_rank_gate(ours)
    del weights["g_proj.weight"]
    theirs.load_state_dict(weights)
    monkeypatch.setattr(kimi.KimiLinearForgetGate, "forward", bounded)
    return theirs


def low_rank_gate(layer):
    generator = torch.Generator().manual_seed(layer.layer)
    down = torch.randn(layer.head_dim, 128, generator=generator) / 128**0.5
    up = torch.randn(4 * layer.head_dim, layer.head_dim, generator=generator)
    return down, up / layer.head_dim**0.5


def report(layer, name, found, expected):
    difference = (found - expected).abs().max().item()
    line = f"layer {layer + 1} {name}: {difference:.1e} of {expected.abs().max():.2f}\n"
    sys.stdout.write(line)
    return difference


@torch.no_grad()
@pytest.mark.parametrize("layer", [n for n in range(8) if n not in (3, 7)])
def test_kda_layer(layer, config, monkeypatch):
    torch.manual_seed(layer)
    ours = KDALayer(SHAPE, layer)
    ours.apply(init_module)
    torch.nn.init.normal_(ours.A_log, std=0.5)
    torch.nn.init.normal_(ours.o_norm.weight, mean=1.0, std=0.2)
    down, up = low_rank_gate(ours)
    ours.g_proj.weight.copy_(up @ down)
    theirs = theirs_of_kda(ours, config, monkeypatch)
    assert config.layer_types[layer] == "linear_attention"
    x = torch.randn(NUM_TOKENS, 128)
    found = ours(x, PackedMixer(torch.tensor([0, NUM_TOKENS])))
    assert report(layer, "KDA", found, theirs(x[None])[0]) < KDA_BOUND


@torch.no_grad()
@pytest.mark.parametrize("layer", [3, 7])
def test_latent_attention(layer, config):
    torch.manual_seed(layer)
    ours = MLALayer(SHAPE, layer).double()
    ours.apply(init_module)
    torch.nn.init.normal_(ours.q_a_layernorm.weight, mean=1.0, std=0.2)
    torch.nn.init.normal_(ours.kv_a_layernorm.weight, mean=1.0, std=0.2)
    torch.nn.init.zeros_(ours.g_proj.weight)
    theirs = kimi.KimiLinearAttention(config, layer).double()
    weights = dict(ours.state_dict())
    del weights["g_proj.weight"]
    theirs.load_state_dict(weights)
    theirs.q_a_layernorm.variance_epsilon = SHAPE.rms_norm_eps
    theirs.kv_a_layernorm.variance_epsilon = SHAPE.rms_norm_eps
    assert config.layer_types[layer] == "full_attention"
    x = torch.randn(NUM_TOKENS, 128, dtype=torch.float64)
    found = ours(x, PackedMixer(torch.tensor([0, NUM_TOKENS])))
    mask = torch.full((NUM_TOKENS, NUM_TOKENS), float("-inf"), dtype=torch.float64).triu(1)
    expected = theirs(x[None], attention_mask=mask[None, None])[0][0] / 2
    assert report(layer, "MLA", found, expected) < MLA_BOUND
