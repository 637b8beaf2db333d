"""Half precision is widened, anything wider stays as it is."""

import torch

from kernels.precision import widen


def test_sums_are_never_taken_in_half_precision():
    assert widen(torch.ones(1, dtype=torch.bfloat16)).dtype == torch.float32
    assert widen(torch.ones(1, dtype=torch.float16)).dtype == torch.float32
    for dtype in (torch.float32, torch.float64):
        x = torch.ones(1, dtype=dtype)
        assert widen(x) is x
