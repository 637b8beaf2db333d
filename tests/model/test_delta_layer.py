"""A KDA layer: gates in range, published initialisation, chunks equal the token-by-token form."""

import torch

from kernels.delta_attention.reference import delta_recurrent
from model.delta_layer import KDALayer
from model.mixer import PackedMixer
from model.presets import tiny


class RecurrentMixer(PackedMixer):
    def delta(self, layer, qkv, g, beta):
        q, k, v = layer.activate(qkv, self.cu_seqlens)
        return delta_recurrent(q, k, v, g, beta, self.cu_seqlens)[0]


def test_gates_stay_in_their_ranges():
    layer = KDALayer(tiny(), 0)
    g, beta = layer.gates(100 * torch.randn(50, 128))
    assert g.min() >= -5.0
    assert g.max() <= 0.0
    assert beta.min() >= 0.0
    assert beta.max() <= 1.0


def test_initial_decay_is_the_published_one():
    layer = KDALayer(tiny(), 0)
    layer.init_gates()
    dt = torch.nn.functional.softplus(layer.dt_bias)
    assert dt.min() >= 1e-3 * 0.999
    assert dt.max() <= 0.1 * 1.001
    assert not layer.A_log.any()


def test_queries_and_keys_have_unit_length():
    q, k, _ = KDALayer(tiny(), 0).activate(torch.randn(14, 3 * 128), torch.tensor([0, 5, 14]))
    torch.testing.assert_close(q.norm(dim=-1), torch.ones(14, 4), atol=1e-3, rtol=0)
    torch.testing.assert_close(k.norm(dim=-1), torch.ones(14, 4), atol=1e-3, rtol=0)


def test_chunks_equal_the_token_by_token_form():
    layer = KDALayer(tiny(), 0).double()
    x, bounds = torch.randn(40, 128, dtype=torch.float64), torch.tensor([0, 17, 40])
    chunked = layer(x, PackedMixer(bounds))
    torch.testing.assert_close(chunked, layer(x, RecurrentMixer(bounds)), rtol=0, atol=1e-10)
