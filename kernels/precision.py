"""The float type an op computes in."""

import torch
from torch import Tensor


def widen(x: Tensor) -> Tensor:
    """Return `x` in at least float32: tensors may be stored in half precision, sums may not."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
