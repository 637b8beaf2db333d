"""The kernels of token_logprobs against plain log_softmax in float64."""

import pytest
import torch

pytestmark = pytest.mark.usefixtures("nan_memory")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks of rows and of vocabulary in the backward pass, stretches in the forward."""
    from kernels.token_logprobs import launch

    monkeypatch.setattr(launch, "GRAD_ROWS", 128)
    monkeypatch.setattr(launch, "GRAD_COLUMNS", 192)
    monkeypatch.setattr(launch, "SPLITS", 3)


def inputs(device, num_tokens, vocabulary, width, scale=1.0, dtype=torch.float32):
    torch.manual_seed(0)
    hidden = (torch.randn(num_tokens, width) * scale).to(device, dtype).requires_grad_()
    weight = torch.randn(vocabulary, width).to(device, dtype).requires_grad_()
    return hidden, weight, torch.randint(0, vocabulary, (num_tokens,)).to(device)


def plain(hidden, weight, targets, temperature):
    logp = (hidden @ weight.T / temperature).log_softmax(dim=-1)
    return logp.gather(1, targets[:, None]).squeeze(1), -(logp.exp() * logp).sum(dim=-1)


def with_gradients(function, hidden, weight, targets, temperature, pulls):
    values = function(hidden, weight, targets, temperature)
    gradients = torch.autograd.grad(
        values,
        (hidden, weight),
        [pull.to(value.dtype) for pull, value in zip(pulls, values, strict=True)],
    )
    return (*(value.detach() for value in values), *gradients)


def both(case, temperature):
    from kernels.token_logprobs.launch import token_logprobs_triton

    hidden, weight, targets = case
    pulls = [torch.randn(len(targets), device=hidden.device) for _ in range(2)]
    exact = (x.detach().double().requires_grad_() for x in (hidden, weight))
    return (
        with_gradients(token_logprobs_triton, *case, temperature, pulls),
        with_gradients(plain, *exact, targets, temperature, pulls),
    )


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(
    ("num_tokens", "vocabulary", "width"),
    [(1, 1, 1), (3, 63, 16), (64, 64, 32), (65, 65, 33), (130, 500, 40), (5, 700, 7)],
)
def test_scores_and_gradients_equal_log_softmax(device, num_tokens, vocabulary, width, temperature):
    case = inputs(device, num_tokens, vocabulary, width)
    actual, expected = both(case, temperature)
    for ours, wanted in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours.double(), wanted, rtol=1e-4, atol=2e-5)


def test_bfloat16_is_summed_in_float32(device):
    actual, expected = both(inputs(device, 33, 300, 24, dtype=torch.bfloat16), 0.8)
    assert [x.dtype for x in actual] == [torch.float32] * 2 + [torch.bfloat16] * 2
    for ours, wanted in zip(actual[:2], expected[:2], strict=True):
        torch.testing.assert_close(ours.double(), wanted, rtol=1e-4, atol=1e-4)
    for ours, wanted in zip(actual[2:], expected[2:], strict=True):
        # The gradient of each logit is rounded to bfloat16, and so is their product.
        torch.testing.assert_close(ours.double(), wanted, rtol=2e-2, atol=2e-2)


def test_logits_of_thousands_stay_numbers(device):
    actual, expected = both(inputs(device, 20, 200, 16, scale=1e3), 1.0)
    assert all(x.isfinite().all() for x in actual)
    torch.testing.assert_close(actual[0].double(), expected[0], rtol=1e-5, atol=5e-3)


def test_a_head_whose_rows_lie_apart_is_read_right(device):
    hidden, weight, targets = inputs(device, 9, 70, 12)
    apart = torch.cat([weight, weight], dim=1).detach()[:, :12].requires_grad_()
    actual, expected = both((hidden, apart, targets), 1.0)
    torch.testing.assert_close(actual[0].double(), expected[0], rtol=1e-4, atol=2e-5)
