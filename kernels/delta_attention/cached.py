"""The delta rule on states that lie in an engine's cache, where they are read and replaced.

A CPU computes token after token, in compiled loops, whether a sequence adds one token or many: its
outputs depend, bit for bit, on its own tokens alone, not on how they were split into forwards.
"""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from kernels.checks import check_cu_seqlens, check_tensors
from kernels.delta_attention import delta_attention, delta_attention_step
from kernels.lane import lane_of

OP = "cached_delta_attention"


@dataclass(frozen=True, slots=True)
class CachedSequences:
    """Packed sequences that continue from cached states."""

    slots: Int[Tensor, " B"]
    """State of each sequence, all different, int64."""
    cu_seqlens: Int[Tensor, " B1"]
    """First new token of each sequence in the pack, and T at the end."""
    starts: Int[Tensor, " B"]
    """Absolute position of each sequence's first new token."""


def cached_delta_attention(
    q: Float[Tensor, "T H K"],
    k: Float[Tensor, "T H K"],
    v: Float[Tensor, "T H V"],
    g: Float[Tensor, "T H K"],
    beta: Float[Tensor, "T H"],
    states: Float[Tensor, "N H K V"],
    sequences: CachedSequences,
) -> Float[Tensor, "T H V"]:
    """Advance packed sequences from their cached states, and cache the states after them.

    Args:
        q: Queries, normalised to unit length; the factor K^(-1/2) is applied here.
        k: Keys, normalised to unit length.
        v: Values.
        g: Log-decays, nats.
        beta: Write strengths.
        states: Those of the sequences are replaced. States may lie apart in memory.
        sequences: Which states they are, and where the tokens lie.

    Raises:
        ValueError: a shape, type, device or stride does not fit.
    """
    tensors = {
        "q": (q, "T H K"),
        "k": (k, "T H K"),
        "v": (v, "T H V"),
        "g": (g, "T H K"),
        "beta": (beta, "T H"),
        "states": (states, "N H K V"),
    }
    sizes = check_tensors(OP, tensors)
    slots, cu_seqlens = sequences.slots, sequences.cu_seqlens
    bounds = check_cu_seqlens(OP, cu_seqlens, sizes["T"])
    if not len(slots) == len(sequences.starts) == len(bounds) - 1:
        raise ValueError(
            f"{OP}: {len(slots)} slots and {len(sequences.starts)} starts for {len(bounds) - 1} "
            "sequences"
        )
    if not states[0].is_contiguous():
        raise ValueError(
            f"{OP}: a state has strides {list(states[0].stride())}: it must be contiguous"
        )
    if lane_of(q) == "cpu":
        from kernels.delta_attention import cpu

        return cpu.cached_delta_attention(q, k, v, g, beta, states, sequences)
    if sizes["T"] == len(slots):
        output, states[slots] = delta_attention_step(q, k, v, g, beta, states[slots])
    else:
        output, states[slots] = delta_attention(
            q, k, v, g, beta, cu_seqlens, states[slots], sequences.starts
        )
    return output
