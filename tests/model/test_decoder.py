"""The whole decoder: size, packing, replay, attention residuals, decoding token by token."""

import pytest
import torch
from torch.nn.functional import rms_norm, scaled_dot_product_attention

from kernels.delta_attention import delta_attention_step
from kernels.short_conv import last_inputs
from model.decoder import Decoder, init_module
from model.hybrid import build_model
from model.mixer import PackedMixer
from model.presets import tiny


@pytest.fixture(scope="module")
def decoder():
    """A decoder whose pseudo-queries are not zero, in float64."""
    torch.manual_seed(0)
    decoder = Decoder(tiny())
    decoder.apply(init_module)
    for name, parameter in decoder.named_parameters():
        if "res_proj" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return decoder.double()


class CachedMixer:
    """One sequence, token by token: what an engine keeps, in its simplest form."""

    def __init__(self):
        self.tails, self.states, self.latents = {}, {}, {}

    def delta(self, layer, qkv, g, beta):
        tail = self.tails.get(layer.layer, qkv.new_zeros(1, layer.conv_width - 1, qkv.shape[1]))
        one = torch.tensor([0, 1])
        q, k, v = layer.activate(qkv, one, tail)
        state = self.states.get(layer.layer)
        if state is None:
            state = qkv.new_zeros(1, layer.num_heads, layer.head_dim, layer.head_dim)
        output, self.states[layer.layer] = delta_attention_step(q, k, v, g, beta, state)
        self.tails[layer.layer] = last_inputs(qkv, one, tail, layer.conv_width)
        return output

    def latent_attention(self, layer, q, latent):
        past = self.latents.get(layer.layer, latent[:0])
        self.latents[layer.layer] = seen = torch.cat([past, latent])
        keys = seen.expand(layer.num_heads, -1, -1)
        q = layer.absorb(q).transpose(0, 1)
        output = scaled_dot_product_attention(q, keys, keys, scale=layer.scale)
        return layer.read_values(output.transpose(0, 1))


def test_tiny_has_between_one_and_two_million_parameters():
    model = build_model(tiny(), seed=0)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == 1_356_940
    assert 1.0e6 < count < 1.8e6


def test_packed_sequences_equal_separate_ones(decoder):
    lengths = [1, 17, 40, 16]
    sequences = [torch.randint(0, 1024, (length,)) for length in lengths]
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    packed = decoder(torch.cat(sequences), PackedMixer(bounds))
    for sequence, start in zip(sequences, bounds.tolist(), strict=False):
        alone = decoder(sequence, PackedMixer(torch.tensor([0, len(sequence)])))
        rows = slice(start, start + len(sequence))
        torch.testing.assert_close(packed.hidden[rows], alone.hidden, rtol=1e-6, atol=1e-6)
        assert torch.equal(packed.expert_ids[rows], alone.expert_ids)


def test_decoding_token_by_token_equals_the_full_forward(decoder):
    tokens = torch.randint(0, 1024, (37,))
    full = decoder(tokens, PackedMixer(torch.tensor([0, 37])))
    mixer = CachedMixer()
    steps = [decoder(token[None], mixer) for token in tokens]
    hidden = torch.cat([step.hidden for step in steps])
    torch.testing.assert_close(hidden, full.hidden, rtol=1e-6, atol=1e-6)
    assert torch.equal(torch.cat([step.expert_ids for step in steps]), full.expert_ids)


def test_no_token_sees_the_future(decoder):
    tokens = torch.randint(0, 1024, (30,))
    other = tokens.clone()
    other[20:] = torch.randint(0, 1024, (10,))
    mixer = PackedMixer(torch.tensor([0, 30]))
    first, second = decoder(tokens, mixer).hidden, decoder(other, mixer).hidden
    torch.testing.assert_close(first[:20], second[:20], rtol=1e-6, atol=1e-6)
    assert (first[20:] - second[20:]).abs().min(dim=1).values.max() > 1e-6


def test_recorded_experts_replay_layer_by_layer(decoder):
    tokens, mixer = torch.randint(0, 1024, (20,)), PackedMixer(torch.tensor([0, 20]))
    live = decoder(tokens, mixer)
    assert live.expert_ids.shape == (20, 3, 2)
    assert live.expert_ids.dtype == torch.int16
    replayed = decoder(tokens, mixer, live.expert_ids)
    assert torch.equal(replayed.hidden, live.hidden)
    forced = (live.expert_ids + 1) % 8
    other = decoder(tokens, mixer, forced)
    assert torch.equal(other.expert_ids, forced)
    assert not torch.allclose(other.hidden, live.hidden)


def test_attention_residuals_follow_the_published_schedule(decoder):
    """Every layer written out: candidates are the embedding, finished sums, the running sum."""
    tokens, mixer = torch.randint(0, 1024, (11,)), PackedMixer(torch.tensor([0, 11]))

    def mix(candidates, norm, query):
        scores = [rms_norm(c, (128,), norm.weight, norm.eps) @ query.weight[0] for c in candidates]
        weights = torch.stack(scores).softmax(dim=0)
        return sum(w[:, None] * c for w, c in zip(weights, candidates, strict=True))

    bank, running = [], decoder.embed_tokens(tokens)
    for index, block in enumerate(decoder.layers):
        candidates = [*bank, running]
        x = mix(candidates, block.self_attention_res_norm, block.self_attention_res_proj)
        attended = block.self_attn(block.input_layernorm(x), mixer)
        if index in (0, 2):
            bank, running = [*bank, running], attended
        else:
            running = running + attended
        x = mix([*bank, running], block.mlp_res_norm, block.mlp_res_proj)
        x = block.post_attention_layernorm(x)
        running = running + (block.mlp(x) if index == 0 else block.block_sparse_moe(x)[0])
    assert len(bank) == 2
    x = mix([*bank, running], decoder.output_attn_res_norm, decoder.output_attn_res_proj)
    torch.testing.assert_close(decoder(tokens, mixer).hidden, decoder.norm(x), rtol=1e-6, atol=1e-6)


def test_every_parameter_gets_a_gradient(decoder):
    bounds = torch.arange(0, 257, 32)
    output = decoder(torch.randint(0, 1024, (256,)), PackedMixer(bounds))
    decoder.zero_grad()
    output.hidden.square().mean().backward()
    # Layer 1 mixes over one candidate, the embedding: its pseudo-query cannot matter.
    idle = {"layers.0.self_attention_res_proj.weight", "layers.0.self_attention_res_norm.weight"}
    without = {
        name
        for name, parameter in decoder.named_parameters()
        if parameter.grad is None or not parameter.grad.any()
    }
    assert without <= idle


def test_names_are_those_of_the_published_checkpoints():
    names = set(build_model(tiny(), seed=0).state_dict())
    for name in (
        "lm_head.weight",
        "model.embed_tokens.weight",
        "model.output_attn_res_proj.weight",
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.self_attn.A_log",
        "model.layers.0.self_attn.q_conv1d.weight",
        "model.layers.1.block_sparse_moe.gate.e_score_correction_bias",
        "model.layers.1.block_sparse_moe.experts.7.w1.weight",
        "model.layers.1.block_sparse_moe.shared_experts.up_proj.weight",
        "model.layers.3.self_attn.kv_a_proj_with_mqa.weight",
    ):
        assert name in names
