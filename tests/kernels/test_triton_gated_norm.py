"""The kernels of the gated norm against its reference in float64."""

import pytest
import torch

from kernels import row_tiles
from kernels.gated_norm.reference import gated_rms_norm

pytestmark = pytest.mark.usefixtures("nan_memory")
BFLOAT16 = 2**-7
"""Largest relative error of a rounded number: the interpreter cuts off what a GPU rounds."""
EPS = 1e-5


def run(function, x, gate, weight, upstream):
    inputs = [y.detach().requires_grad_() for y in (x, gate, weight)]
    output = function(*inputs, EPS)
    return output.detach(), *torch.autograd.grad(output, inputs, upstream)


def draw(*shape, device):
    return torch.randn(shape, device=device)


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 2, 24), (65, 1, 32), (2, 3, 130), (129, 2, 16)])
def test_output_and_gradients_equal_the_reference(shape, device):
    from kernels.gated_norm.triton_kernels import gated_norm_triton

    torch.manual_seed(0)
    inputs = [draw(*shape, device=device) for _ in range(2)]
    inputs += [draw(shape[-1], device=device), draw(*shape, device=device)]
    expected = run(gated_rms_norm, *(x.double() for x in inputs))
    for actual, wanted in zip(run(gated_norm_triton, *inputs), expected, strict=True):
        torch.testing.assert_close(actual.double(), wanted, rtol=1e-5, atol=1e-5)


def test_programs_that_take_several_tiles_each_count_every_row_once(device, monkeypatch):
    from kernels.gated_norm.triton_kernels import gated_norm_triton

    monkeypatch.setattr(row_tiles, "SUMMING_PROGRAMS", 2)
    inputs = [draw(500, 1, 20, device=device) for _ in range(2)]
    inputs += [draw(20, device=device), draw(500, 1, 20, device=device)]
    expected = run(gated_rms_norm, *(x.double() for x in inputs))
    for actual, wanted in zip(run(gated_norm_triton, *inputs), expected, strict=True):
        torch.testing.assert_close(actual.double(), wanted, rtol=1e-4, atol=1e-4)


def test_heads_inside_wider_rows_are_read_where_they_lie(device):
    from kernels.gated_norm.triton_kernels import gated_norm_triton

    x = draw(5, 3, 40, device=device)[:, :, :24]
    gate = draw(5, 2, 3, 24, device=device)[:, 1]
    weight = draw(24, device=device)
    expected = gated_rms_norm(x.double(), gate.double(), weight.double(), EPS)
    actual = gated_norm_triton(x, gate, weight, EPS)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5)


def test_bfloat16_is_rounded_once(device):
    from kernels.gated_norm.triton_kernels import gated_norm_triton

    inputs = [draw(9, 2, 32, device=device).bfloat16() for _ in range(2)]
    inputs += [draw(32, device=device).bfloat16(), draw(9, 2, 32, device=device).bfloat16()]
    expected = run(gated_rms_norm, *(x.double() for x in inputs))
    for actual, wanted in zip(run(gated_norm_triton, *inputs), expected, strict=True):
        assert actual.dtype == torch.bfloat16
        torch.testing.assert_close(actual.double(), wanted, rtol=BFLOAT16, atol=1e-5)


def test_rows_longer_than_a_program_holds_are_refused(device):
    from kernels.gated_norm.triton_kernels import MAX_WIDTH, gated_norm_triton

    x = torch.zeros(1, 1, MAX_WIDTH + 1, device=device)
    with pytest.raises(ValueError, match="gated_norm: V = 16385"):
        gated_norm_triton(x, x, x[0, 0], EPS)
