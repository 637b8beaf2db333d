"""The kernels of the packed short convolution against its reference in float64."""

import pytest
import torch

from kernels import row_tiles
from kernels.short_conv.reference import causal_conv

pytestmark = pytest.mark.usefixtures("nan_memory")
BFLOAT16 = 2**-7
"""Largest relative error of a rounded number: the interpreter cuts off what a GPU rounds."""
BOUNDS = [
    [0, 1],
    [0, 2, 3, 4],
    [0, 15, 31, 48],
    [0, 63, 65, 129],
    [0, 1, 6, 130, 132],
]


def run(function, x, weight, tails, upstream, bounds):
    inputs = [y.detach().requires_grad_() for y in (x, weight, tails) if y is not None]
    output = function(*inputs[:2], bounds, *inputs[2:])
    return output.detach(), *torch.autograd.grad(output, inputs, upstream)


def compare(x, weight, tails, upstream, bounds, **tolerance):
    from kernels.short_conv.triton_kernels import short_conv_triton

    def on_gpu(x, weight, bounds, tails=None):
        return short_conv_triton(x, weight, torch.tensor(bounds), tails)

    wide = (y if y is None else y.double() for y in (x, weight, tails, upstream))
    expected = run(causal_conv, *wide, bounds)
    actual = run(on_gpu, x, weight, tails, upstream, bounds)
    for ours, wanted in zip(actual, expected, strict=True):
        assert ours.dtype == x.dtype
        torch.testing.assert_close(ours.double(), wanted, **tolerance)


def make_inputs(bounds, channels, width, has_tails, device):
    torch.manual_seed(channels)
    num_tokens, num_sequences = bounds[-1], len(bounds) - 1
    x, upstream = (torch.randn(num_tokens, channels, device=device) for _ in range(2))
    tails = torch.randn(num_sequences, width - 1, channels, device=device) if has_tails else None
    return x, torch.randn(channels, width, device=device), tails, upstream


@pytest.mark.parametrize("has_tails", [False, True])
@pytest.mark.parametrize("bounds", BOUNDS)
def test_output_and_gradients_equal_the_reference(bounds, has_tails, device):
    inputs = make_inputs(bounds, 20, 4, has_tails, device)
    compare(*inputs, bounds, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("width", [2, 3, 5])
def test_any_number_of_taps_and_more_channels_than_a_tile(width, device):
    inputs = make_inputs([0, 2, 9], 150, width, True, device)
    compare(*inputs, [0, 2, 9], rtol=1e-5, atol=1e-5)


def test_programs_that_take_several_tiles_each_count_every_token_once(device, monkeypatch):
    monkeypatch.setattr(row_tiles, "SUMMING_PROGRAMS", 2)
    inputs = make_inputs([0, 300, 700], 5, 4, True, device)
    compare(*inputs, [0, 300, 700], rtol=1e-4, atol=1e-4)


def test_a_neighbour_that_is_not_a_number_is_not_read(device):
    from kernels.short_conv.triton_kernels import short_conv_triton

    x, weight, tails, _ = make_inputs([0, 4, 7, 12], 6, 4, True, device)
    bounds = torch.tensor([0, 4, 7, 12])
    clean = short_conv_triton(x, weight, bounds, tails)
    x[4:7], tails[1] = torch.nan, torch.nan
    dirty = x.requires_grad_()
    output = short_conv_triton(dirty, weight, bounds, tails)
    kept = torch.tensor([0, 1, 2, 3, 7, 8, 9, 10, 11])
    assert torch.equal(output[kept], clean[kept])
    (grad,) = torch.autograd.grad(output[kept].sum(), dirty)
    assert not grad[kept].isnan().any()


def test_rows_inside_wider_ones_are_read_where_they_lie(device):
    x, weight, tails, upstream = make_inputs([0, 3, 11], 16, 4, True, device)
    wide = torch.cat([x, x], dim=1)[:, :16]
    compare(wide, weight, tails, upstream, [0, 3, 11], rtol=1e-5, atol=1e-5)


def test_bfloat16_is_rounded_once(device):
    inputs = (x.bfloat16() for x in make_inputs([0, 5, 30], 12, 4, True, device))
    compare(*inputs, [0, 5, 30], rtol=BFLOAT16, atol=1e-5)
