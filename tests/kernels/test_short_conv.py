"""The packed short convolution against a loop over taps, across boundaries and continuations."""

import itertools

import pytest
import torch

from kernels.short_conv import last_inputs, short_conv

BOUNDS = [
    [0, 1],
    [0, 2, 3],
    [0, 9],
    [0, 4, 7, 8, 16, 18],
    [0, 3, 6, 9],
]
"""Packs with sequences shorter than, as long as, and longer than a head."""


def make_inputs(bounds, channels=6, width=4, has_tails=True):
    generator = torch.Generator().manual_seed(bounds[-1])

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)

    tails = draw(len(bounds) - 1, width - 1, channels) if has_tails else None
    return draw(bounds[-1], channels), draw(channels, width), torch.tensor(bounds), tails


def oracle(x, weight, bounds, tails):
    """One number after the other."""
    width = weight.shape[1]
    output = torch.zeros(x.shape, dtype=torch.float64)
    for sequence, (start, stop) in enumerate(itertools.pairwise(bounds.tolist())):
        for t, c, i in itertools.product(range(start, stop), range(x.shape[1]), range(width)):
            source = t - (width - 1) + i
            if source >= start:
                output[t, c] += weight[c, i] * x[source, c]
            elif tails is not None:
                output[t, c] += weight[c, i] * tails[sequence, source - start + width - 1, c]
    return output


@pytest.mark.parametrize("width", [2, 4, 5])
@pytest.mark.parametrize("has_tails", [False, True])
@pytest.mark.parametrize("bounds", BOUNDS)
def test_every_sequence_is_convolved_alone(bounds, has_tails, width):
    inputs = make_inputs(bounds, width=width, has_tails=has_tails)
    with torch.no_grad():
        torch.testing.assert_close(short_conv(*inputs), oracle(*inputs), rtol=0, atol=1e-12)


@pytest.mark.parametrize("has_tails", [False, True])
@pytest.mark.parametrize("bounds", BOUNDS)
def test_gradients_are_finite_differences(bounds, has_tails):
    x, weight, cu_seqlens, tails = make_inputs(bounds, channels=2, has_tails=has_tails)
    inputs = (x, weight, *([tails] if has_tails else []))
    assert torch.autograd.gradcheck(lambda x, w, *t: short_conv(x, w, cu_seqlens, *t), inputs)


def test_a_neighbour_that_is_not_a_number_is_not_read():
    x, weight, cu_seqlens, tails = make_inputs([0, 2, 8, 13])
    clean = short_conv(x, weight, cu_seqlens, tails)
    dirty = x.detach().clone()
    dirty[2:8] = torch.nan
    dirty.requires_grad_()
    output = short_conv(dirty, weight, cu_seqlens, tails)
    kept = torch.cat([torch.arange(2), torch.arange(8, 13)])
    assert torch.equal(output[kept], clean[kept])
    assert output[2:8].isnan().all()
    (grad,) = torch.autograd.grad(output[kept].sum(), dirty)
    (clean_grad,) = torch.autograd.grad(clean[kept].sum(), x)
    assert torch.equal(grad[kept], clean_grad[kept])


def test_sequences_continue_from_their_last_inputs_wherever_they_are_cut():
    x, weight, cu_seqlens, _ = (y.detach() for y in make_inputs([0, 9, 20]))
    whole = short_conv(x, weight, cu_seqlens)
    for first, second in itertools.product((1, 2, 3, 8), (1, 5, 10)):
        head = torch.cat([x[:first], x[9 : 9 + second]])
        head_bounds = torch.tensor([0, first, first + second])
        rest = torch.cat([x[first:9], x[9 + second :]])
        rest_bounds = torch.tensor([0, 9 - first, 20 - first - second])
        tails = last_inputs(head, head_bounds, None, 4)
        output = short_conv(rest, weight, rest_bounds, tails)
        expected = torch.cat([whole[first:9], whole[9 + second :]])
        torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("has_tails", [False, True])
@pytest.mark.parametrize("bounds", BOUNDS)
def test_the_last_inputs_are_those_before_each_end(bounds, has_tails):
    x, weight, cu_seqlens, tails = make_inputs(bounds, has_tails=has_tails)
    new = last_inputs(x, cu_seqlens, tails, weight.shape[1])
    for sequence, (start, stop) in enumerate(itertools.pairwise(bounds)):
        before = tails[sequence] if has_tails else torch.zeros(3, 6, dtype=torch.float64)
        assert torch.equal(new[sequence], torch.cat([before, x[start:stop]])[-3:])


def test_token_by_token_equals_the_whole():
    x, weight, _, tails = (y.detach() for y in make_inputs([0, 7]))
    whole = short_conv(x, weight, torch.tensor([0, 7]), tails)
    one = torch.tensor([0, 1])
    for t in range(7):
        torch.testing.assert_close(short_conv(x[t : t + 1], weight, one, tails)[0], whole[t])
        tails = last_inputs(x[t : t + 1], one, tails, 4)
    assert torch.equal(tails[0], x[4:])


def test_half_precision_computes_in_float32():
    x, weight, cu_seqlens, tails = (y.detach() for y in make_inputs([0, 5, 40]))
    rounded = [y.bfloat16() for y in (x, weight, tails)]
    expected = oracle(*(y.double() for y in rounded[:2]), cu_seqlens, rounded[2].double())
    output = short_conv(rounded[0], rounded[1], cu_seqlens, rounded[2])
    assert torch.equal(output, expected.bfloat16())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(5, 6, 1)}, r"x has shape \[5, 6, 1\], expected \[T, C\]"),
        ({"x": torch.zeros(0, 6)}, "x is empty"),
        ({"x": torch.zeros(5, 6, dtype=torch.int64)}, "x is torch.int64"),
        ({"x": torch.zeros(6, 5).T}, "rows must be contiguous"),
        ({"weight": torch.zeros(5, 4)}, r"weight has shape \[5, 4\], expected \[C, I\].*C = 6"),
        ({"weight": torch.zeros(6, 4).double()}, "weight is torch.float64, x is torch.float32"),
        ({"weight": torch.zeros(6, 4, device="meta")}, "weight is on meta, x is on cpu"),
        ({"weight": torch.zeros(6, 1), "tails": None}, "a filter of 1 taps"),
        ({"tails": torch.zeros(1, 3, 6)}, r"tails has shape \[1, 3, 6\].*S = 2"),
        ({"tails": torch.zeros(2, 4, 6)}, r"tails has shape .*expected \[S, I-1, C\].*I = 4"),
        ({"cu_seqlens": torch.tensor([0, 2, 4])}, "runs from 0 to 4, the pack from 0 to 5"),
        ({"cu_seqlens": torch.tensor([0, 5, 5])}, "gives sequence 1 0 tokens"),
        ({"cu_seqlens": torch.tensor([0.0, 2.0, 5.0])}, "cu_seqlens is torch.float32"),
        ({"cu_seqlens": torch.tensor(5), "tails": None}, "expected one dimension"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    arguments = {
        "x": torch.zeros(5, 6),
        "weight": torch.zeros(6, 4),
        "cu_seqlens": torch.tensor([0, 2, 5]),
        "tails": torch.zeros(2, 3, 6),
    }
    with pytest.raises(ValueError, match=f"^short_conv: .*{message}"):
        short_conv(**arguments | change)
