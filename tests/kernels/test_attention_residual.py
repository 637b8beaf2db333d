"""Attention residuals against a loop over tokens."""

import torch

from kernels.attention_residual import attention_residual


def make_candidates(count):
    torch.manual_seed(count)
    return [torch.randn(5, 8, dtype=torch.float64, requires_grad=True) for _ in range(count)]


def test_it_equals_a_loop_over_tokens():
    candidates = make_candidates(3)
    query, norm_weight = torch.randn(8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    actual = attention_residual(candidates, query, norm_weight, 1e-3)
    for t in range(5):
        rows = [candidate[t] for candidate in candidates]
        scores = [
            torch.dot(query, norm_weight * row / (row.square().mean() + 1e-3).sqrt())
            for row in rows
        ]
        total = sum(score.exp() for score in scores)
        expected = sum(score.exp() / total * row for score, row in zip(scores, rows, strict=True))
        torch.testing.assert_close(actual[t], expected)


def test_a_zero_query_mixes_uniformly():
    candidates = make_candidates(4)
    zero, one = torch.zeros(8, dtype=torch.float64), torch.ones(8, dtype=torch.float64)
    mixture = attention_residual(candidates, zero, one, 1e-5)
    torch.testing.assert_close(mixture, torch.stack(candidates).mean(dim=0))


def test_gradients_reach_candidates_query_and_norm():
    query = torch.randn(8, dtype=torch.float64, requires_grad=True)
    norm_weight = torch.randn(8, dtype=torch.float64, requires_grad=True)

    def mix(query, norm_weight, *candidates):
        return attention_residual(candidates, query, norm_weight, 1e-3)

    assert torch.autograd.gradcheck(mix, (query, norm_weight, *make_candidates(3)))
