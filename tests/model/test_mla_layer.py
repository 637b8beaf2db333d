"""Gated latent attention: both forms equal each other and the layer as it is written down."""

from dataclasses import replace

import pytest
import torch

from model.decoder import init_module
from model.mixer import PackedMixer
from model.mla_layer import MLALayer
from model.presets import PRESETS, tiny

NARROW = replace(tiny(), qk_rope_head_dim=16)
WIDE_LATENT = replace(tiny(), kv_lora_rank=96, qk_rope_head_dim=8, v_head_dim=24)
WIDE_VALUES = replace(tiny(), kv_lora_rank=96, qk_nope_head_dim=24, v_head_dim=40)
BOUNDS = torch.tensor([0, 13, 30])


def layer_and_input(shape):
    torch.manual_seed(0)
    layer = MLALayer(shape, 3)
    layer.apply(init_module)
    torch.nn.init.normal_(layer.q_a_layernorm.weight)
    torch.nn.init.normal_(layer.kv_a_layernorm.weight)
    return layer.double(), torch.randn(30, 128, dtype=torch.float64)


@pytest.mark.parametrize("expanded", [True, False], ids=["expanded", "absorbed"])
@pytest.mark.parametrize(
    "shape", [tiny(), NARROW, WIDE_LATENT, WIDE_VALUES], ids=["tiny", "shared", "latent", "values"]
)
def test_either_form_equals_the_layer_as_it_is_written_down(shape, expanded, oracle, monkeypatch):
    monkeypatch.setattr(MLALayer, "attends_cheaper_expanded", expanded)
    layer, x = layer_and_input(shape)
    packed = layer(x, PackedMixer(BOUNDS))
    weights = oracle.weights_of(layer)
    expected = [oracle.mla_layer(weights, part.numpy(), shape) for part in (x[:13], x[13:])]
    expected = torch.cat([torch.from_numpy(part) for part in expected])
    torch.testing.assert_close(packed, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("shape", [NARROW, WIDE_LATENT], ids=["shared", "latent"])
def test_both_forms_have_the_same_gradients(shape, monkeypatch):
    layer, x = layer_and_input(shape)
    gradients = []
    for expanded in (True, False):
        monkeypatch.setattr(MLALayer, "attends_cheaper_expanded", expanded)
        layer.zero_grad()
        layer(x, PackedMixer(BOUNDS)).square().sum().backward()
        gradients.append({n: p.grad.clone() for n, p in layer.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-9, atol=1e-10)


def test_whole_sequences_take_the_form_with_fewer_operations():
    def expands(shape):
        with torch.device("meta"):
            return MLALayer(shape, 3).attends_cheaper_expanded

    assert not expands(tiny())
    assert expands(WIDE_LATENT)
    assert all(expands(make(1024)) for name, make in PRESETS.items() if name != "tiny")


@pytest.mark.parametrize("expanded", [True, False])
def test_a_token_does_not_see_the_sequence_before_its_own(expanded, monkeypatch):
    monkeypatch.setattr(MLALayer, "attends_cheaper_expanded", expanded)
    layer, x = layer_and_input(NARROW)
    other = torch.cat([torch.randn(13, 128, dtype=torch.float64), x[13:]])
    mixer = PackedMixer(BOUNDS)
    torch.testing.assert_close(layer(x, mixer)[13:], layer(other, mixer)[13:], rtol=0, atol=1e-12)
