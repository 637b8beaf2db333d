"""Weights of four bits: how published checkpoints store routed experts.

A number is a sign and one of eight magnitudes (E2M1); 32 neighbours of a row share a scale, a power
of two (E8M0). Two numbers lie in a byte, the first in its low half.

    w = (-1)^sign magnitude 2^(scale - 127)

Source: OCP Microscaling Formats (MX) Specification v1.0, sections 5.3 and 5.4.
"""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

GROUP = 32
"""Numbers of a row that share a scale."""
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""By the three low bits of a number."""
SCALE_BIAS = 127
"""Exponent that a scale of this value stands for: zero."""


def unpack(
    packed: UInt8[Tensor, "M half_N"], scale: UInt8[Tensor, "M groups"]
) -> Float[Tensor, "M N"]:
    """Return the matrix, float32.

    Args:
        packed: N / 2 bytes a row.
        scale: N / GROUP bytes a row.
    """
    assert packed.shape[-1] * 2 == scale.shape[-1] * GROUP
    values = torch.tensor([*MAGNITUDES, *(-x for x in MAGNITUDES)], device=packed.device)
    halves = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)
    factors = torch.exp2(scale.float() - SCALE_BIAS)
    return values[halves.int()] * factors.repeat_interleave(GROUP, dim=-1)
