"""Tiled log-probs and entropies against plain log_softmax in float64, gradients included."""

import subprocess
import sys

import pytest
import torch

from kernels.token_logprobs import reference, token_logprobs
from kernels.token_logprobs.support import Support


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Several tiles in both directions, the last ones short."""
    monkeypatch.setattr(reference, "ROWS", 5)
    monkeypatch.setattr(reference, "COLUMNS", 4)


def inputs(num_tokens=13, vocabulary=11, width=6, scale=1.0, dtype=torch.float64):
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(num_tokens, width, generator=draw, dtype=torch.float64) * scale
    weight = torch.randn(vocabulary, width, generator=draw, dtype=torch.float64)
    targets = torch.randint(0, vocabulary, (num_tokens,), generator=draw)
    return hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), targets


def plain(hidden, weight, targets, temperature):
    logp = (hidden @ weight.T / temperature).log_softmax(dim=-1)
    return logp.gather(1, targets[:, None]).squeeze(1), -(logp.exp() * logp).sum(dim=-1)


def with_gradients(function, hidden, weight, targets, temperature=1.0, pulls=None):
    values = function(hidden, weight, targets, temperature)
    draw = torch.Generator().manual_seed(1)
    a, b = pulls or (torch.randn(len(targets), generator=draw, dtype=torch.float64) for _ in "ab")
    loss = (values[0] * a).sum() + (values[1] * b).sum()
    return (*values, *torch.autograd.grad(loss, (hidden, weight)))


@pytest.mark.parametrize("temperature", [1.0, 0.7, 3.0])
@pytest.mark.parametrize("shape", [(13, 11), (1, 1), (5, 4), (6, 3), (4, 9)])
def test_scores_and_gradients_equal_log_softmax(shape, temperature):
    case = inputs(*shape)
    actual = with_gradients(token_logprobs, *case, temperature)
    torch.testing.assert_close(actual, with_gradients(plain, *case, temperature))


@pytest.mark.parametrize("pulls", [(1.0, 0.0), (0.0, 1.0)])
def test_each_output_has_its_own_gradient(pulls):
    case = inputs()
    actual = with_gradients(token_logprobs, *case, pulls=pulls)
    torch.testing.assert_close(actual, with_gradients(plain, *case, pulls=pulls))


def test_gradients_equal_finite_differences():
    hidden, weight, targets = inputs(3, 9, 2)
    assert torch.autograd.gradcheck(
        lambda h, w: token_logprobs(h, w, targets, 0.8), (hidden, weight)
    )


def supports(targets, vocabulary, num_others=3):
    """For each row its target and some others; nothing for every fourth row."""
    draw = torch.Generator().manual_seed(2)
    lists = []
    for row, target in enumerate(targets.tolist()):
        others = torch.randperm(vocabulary, generator=draw)[:num_others].tolist()
        lists.append([] if row % 4 == 3 else sorted({target, *others}))
    flat = torch.tensor([token for each in lists for token in each])
    return lists, Support(token_ids=flat, lengths=torch.tensor([len(each) for each in lists]))


def plain_within(lists):
    def score(hidden, weight, targets, temperature):
        outside = torch.zeros(len(targets), len(weight), dtype=torch.bool)
        for row, kept in enumerate(lists):
            if kept:
                outside[row] = True
                outside[row, kept] = False
        logits = (hidden @ weight.T / temperature).masked_fill(outside, -torch.inf)
        logp = logits.log_softmax(dim=-1).masked_fill(outside, 0.0)
        chance = logp.exp().masked_fill(outside, 0.0)
        return logp.gather(1, targets[:, None]).squeeze(1), -(chance * logp).sum(dim=-1)

    return score


@pytest.mark.parametrize("columns", [4, 64])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_within_a_support_scores_and_gradients_are_those_of_the_rest_of_the_softmax(
    columns, temperature, monkeypatch
):
    monkeypatch.setattr(reference, "COLUMNS", columns)
    case = inputs()
    lists, support = supports(case[2], 11)

    def within(hidden, weight, targets, temperature):
        return token_logprobs(hidden, weight, targets, temperature, support)

    actual = with_gradients(within, *case, temperature)
    torch.testing.assert_close(actual, with_gradients(plain_within(lists), *case, temperature))


@pytest.mark.parametrize("columns", [4, 64])
def test_a_support_of_the_target_alone_has_no_entropy_and_no_gradient(columns, monkeypatch):
    monkeypatch.setattr(reference, "COLUMNS", columns)
    case = inputs(scale=30.0)
    support = Support(token_ids=case[2], lengths=torch.ones_like(case[2]))
    for values in with_gradients(lambda *given: token_logprobs(*given, support), *case):
        torch.testing.assert_close(values, torch.zeros_like(values), rtol=0, atol=1e-12)


def test_rows_of_a_support_are_selected_with_their_lists():
    lists, support = supports(inputs()[2], 11)
    selected = support.select(torch.tensor([1, 3, 4, 12]))
    expected = [token for row in (1, 3, 4, 12) for token in lists[row]]
    assert selected.token_ids.tolist() == expected
    assert selected.lengths.tolist() == [len(lists[row]) for row in (1, 3, 4, 12)]


@pytest.mark.parametrize(
    ("token_ids", "lengths", "message"),
    [
        ([1], [1, 0], "the support has 2 rows, there are 3 targets"),
        ([1], [1, 1, 0], "do not add up to its 1 tokens"),
        ([11], [1, 0, 0], "runs from 11 to 11, the head has rows 0 to 10"),
        ([-1], [0, 1, 0], "runs from -1 to -1"),
    ],
)
def test_a_support_that_does_not_fit_is_refused(token_ids, lengths, message):
    support = Support(token_ids=torch.tensor(token_ids), lengths=torch.tensor(lengths))
    with pytest.raises(ValueError, match=message):
        token_logprobs(*inputs(3), 1.0, support)


@pytest.mark.parametrize("scale", [1e-3, 1e2, 1e4, 1e6])
def test_extreme_logits_stay_exact(scale):
    hidden, weight, targets = inputs(scale=scale)
    actual = with_gradients(token_logprobs, hidden, weight, targets)
    torch.testing.assert_close(actual, with_gradients(plain, hidden, weight, targets))


def test_in_float32_logits_of_thousands_give_no_nan_and_the_right_scores():
    hidden, weight, targets = inputs(scale=2e3, dtype=torch.float32)
    logprobs, entropy = token_logprobs(hidden, weight, targets)
    expected = plain(hidden.double(), weight.double(), targets, 1.0)
    torch.testing.assert_close(logprobs.double(), expected[0], rtol=1e-5, atol=5e-3)
    torch.testing.assert_close(entropy.double(), expected[1], rtol=1e-2, atol=5e-3)


def test_equal_logits_are_a_uniform_distribution():
    weight = torch.ones(11, 6)
    logprobs, entropy = token_logprobs(torch.full((7, 6), -50.0), weight, torch.arange(7))
    expected = torch.full((7,), 11.0).log()
    torch.testing.assert_close(logprobs, -expected)
    torch.testing.assert_close(entropy, expected)


def test_half_precision_is_computed_in_float32():
    hidden, weight, targets = inputs(dtype=torch.bfloat16)
    actual = with_gradients(token_logprobs, hidden, weight, targets)
    exact = (x.detach().float().requires_grad_() for x in (hidden, weight))
    expected = with_gradients(token_logprobs, *exact, targets)
    assert [x.dtype for x in actual] == [torch.float32] * 2 + [torch.bfloat16] * 2
    torch.testing.assert_close(actual[:2], expected[:2], rtol=0, atol=0)
    for gradient, wanted in zip(actual[2:], expected[2:], strict=True):
        torch.testing.assert_close(gradient, wanted.bfloat16(), rtol=0, atol=0)


def test_memory_is_a_small_part_of_the_logits():
    code = (
        "import torch; from kernels.benchmarks.logprob_memory import extra_bytes\n"
        "torch.set_num_threads(1); print(extra_bytes(1024, 50_000, 16))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0 < int(told.stdout) < 0.2 * 1024 * 50_000 * 4  # a tile and libraries, of any T and W


HIDDEN, WEIGHT, TARGETS = torch.randn(3, 6), torch.randn(11, 6), torch.tensor([0, 10, 5])


@pytest.mark.parametrize(
    ("hidden", "weight", "targets", "complaint"),
    [
        (HIDDEN[0], WEIGHT, TARGETS, r"hidden has shape \[6\], expected \[T, D\]"),
        (HIDDEN, WEIGHT[:, :5].clone(), TARGETS, r"head_weight has shape \[11, 5\].*D = 6"),
        (HIDDEN, WEIGHT.double(), TARGETS, "head_weight is torch.float64, hidden is torch.float32"),
        (HIDDEN.long(), WEIGHT, TARGETS, "hidden is torch.int64"),
        (HIDDEN, WEIGHT.to("meta"), TARGETS, "head_weight is on meta, hidden is on cpu"),
        (HIDDEN, torch.randn(6, 11).T, TARGETS, "rows must be contiguous"),
        (HIDDEN[:0], WEIGHT, TARGETS[:0], "hidden is empty"),
        (HIDDEN, WEIGHT[:0], TARGETS, "head_weight is empty"),
        (HIDDEN, WEIGHT, TARGETS[:2], r"targets is torch.int64 of shape \[2\].*shape \[3\]"),
        (HIDDEN, WEIGHT, TARGETS.float(), "targets is torch.float32"),
        (HIDDEN, WEIGHT, TARGETS.to("meta"), "targets is on meta"),
        (HIDDEN, WEIGHT, TARGETS + 1, "targets run from 1 to 11, the head has rows 0 to 10"),
        (HIDDEN, WEIGHT, TARGETS - 1, "targets run from -1 to 9"),
    ],
)
def test_what_does_not_fit_is_refused(hidden, weight, targets, complaint):
    with pytest.raises(ValueError, match=rf"^token_logprobs: .*{complaint}"):
        token_logprobs(hidden, weight, targets)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("inf"), float("nan")])
def test_a_temperature_that_is_not_positive_is_refused(temperature):
    with pytest.raises(ValueError, match="temperature is"):
        token_logprobs(HIDDEN, WEIGHT, TARGETS, temperature)
