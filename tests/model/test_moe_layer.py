"""Experts: sorted dispatch against a loop over tokens, replay, and batch independence."""

import pytest
import torch

from kernels.situ_glu import situ_glu
from model.decoder import init_module
from model.moe_layer import MoELayer
from model.presets import tiny


@pytest.fixture
def layer():
    torch.manual_seed(0)
    layer = MoELayer(tiny())
    layer.apply(init_module)
    return layer.double()


def routed_by_loop(layer, x, chosen):
    """Each token through each of its experts, one at a time."""
    scores = torch.sigmoid(x @ layer.gate.weight.T)
    latent = layer.routed_expert_down_proj(x)
    rows = []
    for t in range(len(x)):
        total = scores[t, chosen[t]].sum()
        row = 0.0
        for index in chosen[t]:
            expert = layer.experts[index]
            inner = situ_glu(expert.w1(latent[t]), expert.w3(latent[t]), 4.0, 25.0)
            row = row + scores[t, index] / total * expert.w2(inner)
        rows.append(row)
    return layer.routed_expert_up_proj(layer.routed_expert_norm(torch.stack(rows)))


def test_dispatch_equals_a_loop_over_tokens(layer):
    x = torch.randn(23, 128, dtype=torch.float64)
    output, chosen = layer(x)
    expected = routed_by_loop(layer, x, chosen) + layer.shared_experts(x)
    # The router works in float32 whatever the rest is.
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)


def test_the_correction_moves_the_choice_but_not_the_weights(layer):
    x = torch.randn(9, 128, dtype=torch.float64)
    layer.gate.e_score_correction_bias[3] = 10.0
    chosen, weights = layer.gate(x)
    assert (chosen[:, 0] == 3).all()
    scores = torch.sigmoid(x @ layer.gate.weight.T).gather(1, chosen)
    torch.testing.assert_close(
        weights, scores / scores.sum(dim=1, keepdim=True), rtol=1e-5, atol=1e-5
    )


def test_replayed_experts_are_used_and_missing_ones_chosen_anew(layer):
    x = torch.randn(6, 128, dtype=torch.float64)
    _, live = layer(x)
    replay = torch.tensor([[7, 0], [0, 1], [-1, -1], [2, 3], [5, 4], [-1, -1]], dtype=torch.int16)
    output, used = layer(x, replay)
    has_replay = (replay >= 0).all(dim=1)
    assert torch.equal(used[has_replay], replay[has_replay].long())
    assert torch.equal(used[~has_replay], live[~has_replay])
    expected = routed_by_loop(layer, x, used) + layer.shared_experts(x)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)


def test_gradients_reach_the_router_under_replay(layer):
    x = torch.randn(6, 128, dtype=torch.float64)
    output, _ = layer(x, torch.tensor([[7, 0]] * 6))
    output.square().sum().backward()
    assert layer.gate.weight.grad[[0, 7]].abs().min() > 0
    assert not layer.gate.weight.grad[1:7].any()


def test_replaying_the_own_choice_changes_nothing(layer):
    x = torch.randn(12, 128, dtype=torch.float64)
    output, chosen = layer(x)
    replayed, _ = layer(x, chosen.to(torch.int16))
    assert torch.equal(replayed, output)


def test_a_token_does_not_see_its_batch(layer):
    layer = layer.float()
    x = torch.randn(40, 128)
    whole, _ = layer(x)
    alone = torch.cat([layer(row[None])[0] for row in x])
    torch.testing.assert_close(whole, alone, rtol=1e-5, atol=1e-5)


def test_the_router_works_in_float32_whatever_the_rest_is(layer):
    layer = layer.bfloat16()
    x = torch.randn(2000, 128).bfloat16()
    chosen, weights = layer.gate(x)
    scores = torch.sigmoid(x.float() @ layer.gate.weight.float().T)
    assert torch.equal(chosen, scores.topk(2, dim=1).indices)  # bfloat16 would tie and swap some
    expected = scores.gather(1, chosen)
    expected = (expected / expected.sum(dim=1, keepdim=True)).bfloat16()
    torch.testing.assert_close(weights, expected, rtol=0, atol=0)
