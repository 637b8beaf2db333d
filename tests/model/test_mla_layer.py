"""Absorbed attention over latents equals attention with keys and values made per head."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from model.mixer import PackedMixer
from model.mla_layer import MLALayer
from model.presets import tiny


def expanded_attention(layer, x):
    """The layer as it is written down: every head gets keys and values of its own."""
    rank, nope, shared = layer.latent_rank, layer.nope_dim, layer.shared_dim
    q = layer.q_b_proj(layer.q_a_layernorm(layer.q_a_proj(x)))
    q = q.view(len(x), layer.num_heads, nope + shared)
    compressed = layer.kv_a_proj_with_mqa(x)
    expanded = layer.kv_b_proj(layer.kv_a_layernorm(compressed[:, :rank]))
    k, v = expanded.view(len(x), layer.num_heads, -1).split([nope, layer.value_dim], dim=-1)
    k = torch.cat([k, compressed[:, None, rank:].expand(-1, layer.num_heads, -1)], dim=-1)
    q, k, v = (y.transpose(0, 1) for y in (q, k, v))
    output = scaled_dot_product_attention(q, k, v, is_causal=True)
    output = output.transpose(0, 1).flatten(1)
    return layer.o_proj(layer.g_proj(x).sigmoid() * output)


@pytest.mark.parametrize("shared_dim", [0, 16])
def test_absorbed_equals_expanded(shared_dim):
    layer = MLALayer(replace(tiny(), qk_rope_head_dim=shared_dim), 3).double()
    x = torch.randn(30, 128, dtype=torch.float64)
    packed = layer(x, PackedMixer(torch.tensor([0, 13, 30])))
    expected = torch.cat([expanded_attention(layer, x[:13]), expanded_attention(layer, x[13:])])
    torch.testing.assert_close(packed, expected, rtol=0, atol=1e-10)
