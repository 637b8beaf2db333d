"""Attention residuals against a loop over tokens."""

import pytest
import torch

from kernels.attention_residual import attention_residual


def make_candidates(count):
    torch.manual_seed(count)
    return [torch.randn(5, 8, dtype=torch.float64, requires_grad=True) for _ in range(count)]


def oracle(candidates, query, norm_weight, eps):
    """One token after the other."""
    mixtures = []
    for rows in zip(*candidates, strict=True):
        scores = [
            torch.dot(query, norm_weight * row / (row.square().mean() + eps).sqrt()) for row in rows
        ]
        total = sum(score.exp() for score in scores)
        mixtures.append(
            sum(score.exp() / total * row for score, row in zip(scores, rows, strict=True))
        )
    return torch.stack(mixtures)


@pytest.mark.parametrize("count", [1, 3, 9])
def test_it_equals_a_loop_over_tokens(count):
    candidates = make_candidates(count)
    query, norm_weight = torch.randn(8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    actual = attention_residual(candidates, query, norm_weight, 1e-3)
    torch.testing.assert_close(actual, oracle(candidates, query, norm_weight, 1e-3))


def test_a_zero_query_mixes_uniformly():
    candidates = make_candidates(4)
    zero, one = torch.zeros(8, dtype=torch.float64), torch.ones(8, dtype=torch.float64)
    mixture = attention_residual(candidates, zero, one, 1e-5)
    torch.testing.assert_close(mixture, torch.stack(candidates).mean(dim=0))


@pytest.mark.parametrize("count", [1, 3])
def test_gradients_reach_candidates_query_and_norm(count):
    query = torch.randn(8, dtype=torch.float64, requires_grad=True)
    norm_weight = torch.randn(8, dtype=torch.float64, requires_grad=True)

    def mix(query, norm_weight, *candidates):
        return attention_residual(candidates, query, norm_weight, 1e-3)

    assert torch.autograd.gradcheck(mix, (query, norm_weight, *make_candidates(count)))


def test_half_precision_computes_in_float32():
    candidates = [row.detach().bfloat16() for row in make_candidates(4)]
    query, norm_weight = (torch.randn(8).bfloat16() for _ in range(2))
    expected = oracle([row.double() for row in candidates], query.double(), norm_weight.double(), 0)
    actual = attention_residual(candidates, query, norm_weight, 0.0)
    torch.testing.assert_close(actual, expected.bfloat16(), rtol=2**-8, atol=0)


def row(*shape):
    return torch.zeros(shape or (5, 8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"candidates": []}, "there is no candidate"),
        ({"candidates": [row(5, 8, 1)]}, r"candidates\[0\] has shape \[5, 8, 1\]"),
        ({"candidates": [row(0, 8)]}, r"candidates\[0\] is empty"),
        ({"candidates": [row(), row(4, 8)]}, r"candidates\[1\] has shape \[4, 8\].*T = 5"),
        ({"candidates": [row(), row().double()]}, r"candidates\[1\] is torch.float64"),
        ({"candidates": [row(), row().to("meta")]}, r"candidates\[1\] is on meta"),
        ({"candidates": [row(), row(8, 5).T]}, r"candidates\[1\] has strides \[1, 5\]"),
        ({"candidates": [row().long()]}, r"candidates\[0\] is torch.int64"),
        ({"query": row(7)}, r"query has shape \[7\], expected \[D\].*D = 8"),
        ({"norm_weight": row(1, 8)}, r"norm_weight has shape \[1, 8\], expected \[D\]"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    arguments = {"candidates": [row(), row()], "query": row(8), "norm_weight": row(8)}
    with pytest.raises(ValueError, match=f"^attention_residual: {message}"):
        attention_residual(**arguments | change, eps=1e-5)
