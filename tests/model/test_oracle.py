"""Every block against the architecture written down a second time (`oracle.py`), in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from model.config import ModelConfig
from model.decoder import Decoder, init_module
from model.delta_layer import KDALayer
from model.mixer import PackedMixer
from model.moe_layer import FeedForward, MoELayer

SHAPE = ModelConfig(
    vocab_size=50,
    hidden_size=24,
    num_hidden_layers=5,
    num_attention_heads=2,
    full_attn_layers=(4, 5),
    attn_res_block_size=2,
    kda_head_dim=8,
    q_lora_rank=16,
    kv_lora_rank=32,
    qk_nope_head_dim=8,
    qk_rope_head_dim=4,
    v_head_dim=12,
    intermediate_size=40,
    num_experts=6,
    num_experts_per_token=2,
    num_shared_experts=2,
    routed_expert_hidden_size=20,
    moe_intermediate_size=12,
)
EXACT = {"rtol": 0, "atol": 1e-10}
ROUTED = {"rtol": 1e-5, "atol": 1e-5}
"""The router works in float32 whatever the rest is."""


def stirred(module):
    """The module in float64, with nothing at a value that would hide it: no zeros, no ones."""
    torch.manual_seed(0)
    module.apply(init_module)
    for name, tensor in module.state_dict().items():
        if name.endswith(("A_log", "dt_bias", "norm.weight", "correction_bias", "res_proj.weight")):
            torch.nn.init.normal_(tensor, std=0.5)
    return module.double()


def whole(num_tokens):
    return PackedMixer(torch.tensor([0, num_tokens]))


def close(found, expected, bound):
    torch.testing.assert_close(found, torch.from_numpy(np.asarray(expected)), **bound)


@pytest.mark.parametrize("num_tokens", [1, 3, 70], ids="{} tokens".format)
def test_kda_layer_with_bounded_decay(oracle, num_tokens):
    layer = stirred(KDALayer(SHAPE, 0))
    x = torch.randn(num_tokens, 24, dtype=torch.float64)
    expected = oracle.kda_layer(oracle.weights_of(layer), x.numpy(), SHAPE)
    close(layer(x, whole(num_tokens)), expected, EXACT)


def test_decay_is_bounded_and_its_bias_joins_before_the_rate(oracle):
    layer = stirred(KDALayer(SHAPE, 0))
    x = 3 * torch.randn(20, 24, dtype=torch.float64)
    g, _ = layer.gates(x)
    weights = oracle.weights_of(layer)
    close(g, np.stack([oracle.decay(weights, row, SHAPE) for row in x.numpy()]), EXACT)


def test_a_lower_bound_of_its_own_is_kept(oracle):
    shape = replace(SHAPE, gate_lower_bound=-2.0)
    layer = stirred(KDALayer(shape, 0))
    x = torch.randn(9, 24, dtype=torch.float64)
    expected = oracle.kda_layer(oracle.weights_of(layer), x.numpy(), shape)
    close(layer(x, whole(9)), expected, EXACT)


def test_situ_glu_over_its_whole_range(oracle):
    layer = stirred(FeedForward(SHAPE, SHAPE.intermediate_size))
    x = torch.logspace(-3, 3, 13, dtype=torch.float64)[:, None] * torch.randn(13, 24).double()
    weights = oracle.weights_of(layer)
    expected = [oracle.feed_forward(weights, row, SHAPE) for row in x.numpy()]
    close(layer(x), np.stack(expected), EXACT)


def test_stable_latent_experts(oracle):
    layer = stirred(MoELayer(SHAPE))
    x = torch.randn(40, 24, dtype=torch.float64)
    output, _ = layer(x)
    weights = oracle.weights_of(layer)
    close(output, np.stack([oracle.moe_layer(weights, row, SHAPE) for row in x.numpy()]), ROUTED)


def test_routed_experts_alone(oracle):
    """Without the shared experts and at their scale: an error in the routed part stands out."""
    layer = stirred(MoELayer(SHAPE))
    torch.nn.init.zeros_(layer.shared_experts.down_proj.weight)
    x = torch.randn(40, 24, dtype=torch.float64)
    output, _ = layer(x)
    weights = oracle.weights_of(layer)
    expected = np.stack([oracle.moe_layer(weights, row, SHAPE) for row in x.numpy()])
    assert np.abs(expected).max() > 0.5
    close(output, expected, ROUTED)


@pytest.mark.parametrize("block_size", [2, 4, 12])
def test_the_whole_decoder(oracle, block_size):
    shape = replace(SHAPE, attn_res_block_size=block_size)
    decoder = stirred(Decoder(shape))
    token_ids = torch.randint(0, 50, (21,))
    expected, num_finished = oracle.decoder(oracle.weights_of(decoder), token_ids.numpy(), shape)
    assert num_finished == {2: 3, 4: 2, 12: 1}[block_size]
    close(decoder.run(token_ids, whole(21)).hidden, expected, ROUTED)


def test_a_dense_decoder_to_the_last_digit(oracle):
    """Without a router nothing rounds to float32: pattern, residuals and both attentions."""
    shape = replace(SHAPE, first_k_dense_replace=5)
    decoder = stirred(Decoder(shape))
    token_ids = torch.randint(0, 50, (70,))
    expected, num_finished = oracle.decoder(oracle.weights_of(decoder), token_ids.numpy(), shape)
    assert num_finished == 3
    close(decoder.run(token_ids, whole(70)).hidden, expected, EXACT)
