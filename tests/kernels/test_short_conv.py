"""The short convolution against PyTorch's, and against itself in two pieces."""

import torch

from kernels.short_conv import short_conv


def test_it_is_a_causal_depthwise_convolution():
    x, weight = torch.randn(2, 9, 6), torch.randn(6, 4)
    padded = torch.nn.functional.pad(x.transpose(1, 2), (3, 0))
    expected = torch.nn.functional.conv1d(padded, weight.unsqueeze(1), groups=6).transpose(1, 2)
    torch.testing.assert_close(short_conv(x, weight), expected)


def test_gradients_are_those_of_the_convolution():
    x = torch.randn(2, 9, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    tail = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(short_conv, (x, weight, tail))


def test_the_tail_continues_a_sequence():
    x, weight = torch.randn(2, 9, 6), torch.randn(6, 4)
    whole = short_conv(x, weight)
    rest = short_conv(x[:, 5:], weight, tail=x[:, 2:5])
    torch.testing.assert_close(rest, whole[:, 5:])
