"""Rows of a product with enough rows have the same bits, however many there are."""

import pytest
import torch

from kernels.rows import MIN_ROWS, at_least_min_rows


@pytest.mark.parametrize("num_rows", [1, 3, MIN_ROWS - 1])
def test_missing_rows_are_zeros(num_rows):
    x = torch.randn(num_rows, 5)
    padded = at_least_min_rows(x)
    assert padded.shape == (MIN_ROWS, 5)
    assert torch.equal(padded[:num_rows], x)
    assert not padded[num_rows:].any()


def test_enough_rows_are_left_alone():
    x = torch.randn(MIN_ROWS, 5)
    assert at_least_min_rows(x) is x


@pytest.mark.parametrize(("width", "columns"), [(64, 96), (96, 64), (128, 128), (384, 128)])
def test_a_row_of_a_product_has_the_same_bits_in_any_batch(width, columns):
    torch.manual_seed(0)
    x, weight = torch.randn(70, width), torch.randn(columns, width)
    whole = x @ weight.T
    for size in (1, 2, 3, 4, 5, 7, 16, 33):
        parts = [(at_least_min_rows(part) @ weight.T)[: len(part)] for part in x.split(size)]
        assert torch.equal(torch.cat(parts), whole)
