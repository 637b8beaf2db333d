"""The kernels of SiTU-GLU against its reference in float64."""

import pytest
import torch

from kernels.situ_glu.reference import bounded_glu

pytestmark = pytest.mark.usefixtures("nan_memory")
BFLOAT16 = 2**-7
"""Largest relative error of a rounded number: the interpreter cuts off what a GPU rounds."""
SHAPES = [(1, 1), (3, 96), (5, 130), (2, 3, 1100), (33, 64)]


def run(function, gate, up, upstream):
    gate, up = gate.detach().requires_grad_(), up.detach().requires_grad_()
    output = function(gate, up, 4.0, 25.0)
    return output.detach(), *torch.autograd.grad(output, (gate, up), upstream)


@pytest.mark.parametrize("shape", SHAPES)
def test_output_and_gradients_equal_the_reference(shape, device):
    from kernels.situ_glu.triton_kernels import situ_glu_triton

    torch.manual_seed(0)
    gate, up, upstream = (scale * torch.randn(shape, device=device) for scale in (4, 25, 1))
    expected = run(bounded_glu, gate.double(), up.double(), upstream.double())
    for actual, wanted in zip(run(situ_glu_triton, gate, up, upstream), expected, strict=True):
        torch.testing.assert_close(actual.double(), wanted, rtol=2e-5, atol=2e-6)


def test_halves_of_one_tensor_are_read_where_they_lie(device):
    from kernels.situ_glu.triton_kernels import situ_glu_triton

    both = torch.randn(7, 2 * 40, device=device)
    gate, up = both.chunk(2, dim=-1)
    expected = bounded_glu(gate.double(), up.double(), 4.0, 25.0)
    actual = situ_glu_triton(gate, up, 4.0, 25.0)
    torch.testing.assert_close(actual.double(), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # of the interpreter
@pytest.mark.parametrize("size", [1e-30, 1e-4, 0.0624, 0.999, 1.001, 30.0, 1e4, 3e38])
def test_it_is_accurate_from_the_smallest_inputs_to_the_largest(size, device):
    from kernels.situ_glu.triton_kernels import situ_glu_triton

    gate = torch.tensor([size, -size, size, 0.0], device=device)
    up = torch.tensor([1e-3, 1.0, -7.0, 3.0], device=device)
    upstream = torch.ones(4, device=device)
    expected = run(bounded_glu, gate.double(), up.double(), upstream.double())
    for actual, wanted in zip(run(situ_glu_triton, gate, up, upstream), expected, strict=True):
        torch.testing.assert_close(actual.double(), wanted, rtol=2e-6, atol=1e-37)


def test_bfloat16_is_rounded_once(device):
    from kernels.situ_glu.triton_kernels import situ_glu_triton

    torch.manual_seed(1)
    gate, up, upstream = (torch.randn(9, 70, device=device).bfloat16() for _ in range(3))
    expected = run(bounded_glu, gate.double(), up.double(), upstream.double())
    for actual, wanted in zip(run(situ_glu_triton, gate, up, upstream), expected, strict=True):
        assert actual.dtype == torch.bfloat16
        torch.testing.assert_close(actual.double(), wanted, rtol=BFLOAT16, atol=1e-5)
