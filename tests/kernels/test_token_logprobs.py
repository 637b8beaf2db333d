"""Chunked log-probs and entropies against plain log_softmax, gradients included."""

import pytest
import torch

from kernels.token_logprobs import reference, token_logprobs


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_and_gradients_equal_log_softmax(temperature, monkeypatch):
    monkeypatch.setattr(reference, "ROWS", 5)  # several chunks, the last one short
    torch.manual_seed(0)
    hidden = torch.randn(13, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 6, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 11, (13,))
    a, b = torch.randn(13, dtype=torch.float64), torch.randn(13, dtype=torch.float64)

    logp = (hidden @ weight.T / temperature).log_softmax(dim=-1)
    expected = (logp.gather(1, targets[:, None]).squeeze(1), -(logp.exp() * logp).sum(dim=-1))
    actual = token_logprobs(hidden, weight, targets, temperature)
    torch.testing.assert_close(actual, expected)

    def gradients(values):
        return torch.autograd.grad((values[0] * a + values[1] * b).sum(), (hidden, weight))

    torch.testing.assert_close(gradients(actual), gradients(expected))


def test_no_tokens_give_no_scores():
    weight = torch.randn(11, 6, requires_grad=True)
    logprobs, entropy = token_logprobs(torch.zeros(0, 6), weight, torch.zeros(0, dtype=torch.long))
    assert logprobs.shape == entropy.shape == (0,)
    logprobs.sum().backward()
    assert not weight.grad.any()
