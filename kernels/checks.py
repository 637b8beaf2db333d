"""What every op asks of its tensors, said in one line when it is not so."""

import itertools
from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor


def check_tensors(
    op: str, tensors: Mapping[str, tuple[Tensor | None, str]], **known: int
) -> dict[str, int]:
    """Check the tensors of one call against each other.

    All must be floating point, of one dtype and on one device, hold at least one element, and have
    rows that are contiguous in memory (stride 1 in the last dimension): the kernels read rows.

    Args:
        op: Name of the op, first word of every message.
        tensors: Argument name to tensor and dimension letters, such as `(q, "T H K")`; equal
            letters are equal sizes, `I-1` is one less than I. None is skipped.
        **known: Sizes that other arguments give.

    Returns:
        Size of each dimension letter.

    Raises:
        ValueError: a tensor does not fit; the message names it, what it is and what it should be.
    """
    sizes = dict(known)
    seen: tuple[str, Tensor] | None = None
    for name, (tensor, letters) in tensors.items():
        if tensor is None:
            continue
        shape, wanted = tensor.shape, _parse(letters)
        if len(shape) != len(wanted):
            raise ValueError(_unfit(op, name, tensor, letters, sizes))
        for size, (letter, missing) in zip(shape, wanted, strict=True):
            if sizes.setdefault(letter, size + missing) != size + missing:
                raise ValueError(_unfit(op, name, tensor, letters, sizes))
        if 0 in shape:
            raise ValueError(f"{op}: {name} is empty, shape {list(shape)}")
        if seen is None:
            seen = name, tensor
        _check_kind(op, name, tensor, *seen)
        if tensor.stride(-1) != 1 and shape[-1] != 1:
            raise ValueError(
                f"{op}: {name} has strides {list(tensor.stride())}: its rows must be contiguous; "
                "call .contiguous() first"
            )
    return sizes


def _check_kind(op: str, name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """Check that a tensor holds floats as another one does, in the same place."""
    if not tensor.is_floating_point():
        raise ValueError(f"{op}: {name} is {tensor.dtype}, expected a floating-point dtype")
    if tensor.dtype != other.dtype:
        raise ValueError(
            f"{op}: {name} is {tensor.dtype}, {other_name} is {other.dtype}: convert one of them"
        )
    if tensor.device != other.device:
        raise ValueError(
            f"{op}: {name} is on {tensor.device}, {other_name} is on {other.device}: move one"
        )


@cache
def _parse(letters: str) -> tuple[tuple[str, int], ...]:
    """Split dimension letters into each letter and how much less than it is wanted."""
    parts = (word.partition("-") for word in letters.split())
    return tuple((letter, int(less or 0)) for letter, _, less in parts)


def _unfit(op: str, name: str, tensor: Tensor, letters: str, sizes: Mapping[str, int]) -> str:
    known = ", ".join(f"{letter} = {size}" for letter, size in sizes.items())
    return (
        f"{op}: {name} has shape {list(tensor.shape)}, expected [{', '.join(letters.split())}]"
        + (f" with {known}" if known else "")
    )


def check_cu_seqlens(op: str, cu_seqlens: Tensor, num_tokens: int) -> list[int]:
    """Check the bounds of packed sequences and return them as numbers.

    Args:
        op: Name of the op, first word of every message.
        cu_seqlens: Start of each sequence, and the number of tokens at the end: S + 1 integers.
        num_tokens: T, tokens in the pack.

    Raises:
        ValueError: the bounds do not begin at 0, do not end at T, or hold an empty sequence.
    """
    if cu_seqlens.dim() != 1 or len(cu_seqlens) < 2:
        raise ValueError(
            f"{op}: cu_seqlens has shape {list(cu_seqlens.shape)}, expected one dimension of at "
            "least two numbers"
        )
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{op}: cu_seqlens is {cu_seqlens.dtype}, expected int32 or int64")
    bounds: list[int] = cu_seqlens.tolist()
    if bounds[0] != 0 or bounds[-1] != num_tokens:
        raise ValueError(
            f"{op}: cu_seqlens runs from {bounds[0]} to {bounds[-1]}, the pack from 0 to "
            f"{num_tokens}"
        )
    for row, (start, stop) in enumerate(itertools.pairwise(bounds)):
        if stop <= start:
            raise ValueError(f"{op}: cu_seqlens gives sequence {row} {stop - start} tokens")
    return bounds
