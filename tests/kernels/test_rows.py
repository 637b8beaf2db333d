"""Rows of a product with enough rows have the same bits, however many there are."""

import pytest
import torch

from kernels.rows import MIN_ROWS


@pytest.mark.parametrize(("width", "columns"), [(64, 96), (96, 64), (128, 1024), (1024, 64)])
def test_a_row_of_a_product_has_the_same_bits_in_any_batch(width, columns):
    torch.manual_seed(0)
    x, weight = torch.randn(70, width), torch.randn(columns, width)
    whole = x @ weight.T
    for size in (1, 2, 3, 4, 5, 7, 16, 33):
        for start in range(0, 70, size):
            part = x[start : start + size]
            filled = torch.cat([part, part.new_zeros(max(0, MIN_ROWS - len(part)), width)])
            product = (filled @ weight.T)[: len(part)]
            assert torch.equal(product, whole[start : start + size])
