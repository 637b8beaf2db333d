"""What every op asks of its tensors, said in one line when it is not so."""

import itertools
from collections.abc import Mapping

import torch
from torch import Tensor


def check_tensors(op: str, tensors: Mapping[str, tuple[Tensor | None, str]]) -> dict[str, int]:
    """Check the tensors of one call against each other.

    All must be floating point, of one dtype and on one device, hold at least one element, and have
    rows that are contiguous in memory (stride 1 in the last dimension): the kernels read rows.

    Args:
        op: Name of the op, first word of every message.
        tensors: Argument name to tensor and dimension letters, such as `(q, "T H K")`; equal
            letters are equal sizes. None is skipped.

    Returns:
        Size of each dimension letter.

    Raises:
        ValueError: a tensor does not fit; the message names it, what it is and what it should be.
    """
    sizes: dict[str, int] = {}
    seen: tuple[str, Tensor] | None = None
    for name, (tensor, letters) in tensors.items():
        if tensor is None:
            continue
        wanted = letters.split()
        if tensor.dim() != len(wanted) or any(
            sizes.setdefault(letter, size) != size
            for letter, size in zip(wanted, tensor.shape, strict=True)
        ):
            known = ", ".join(f"{letter} = {size}" for letter, size in sizes.items())
            raise ValueError(
                f"{op}: {name} has shape {list(tensor.shape)}, expected [{', '.join(wanted)}]"
                + (f" with {known}" if known else "")
            )
        if tensor.numel() == 0:
            raise ValueError(f"{op}: {name} is empty, shape {list(tensor.shape)}")
        if not tensor.is_floating_point():
            raise ValueError(f"{op}: {name} is {tensor.dtype}, expected a floating-point dtype")
        if seen is not None and tensor.dtype != seen[1].dtype:
            raise ValueError(
                f"{op}: {name} is {tensor.dtype}, {seen[0]} is {seen[1].dtype}: convert one of them"
            )
        if seen is not None and tensor.device != seen[1].device:
            raise ValueError(
                f"{op}: {name} is on {tensor.device}, {seen[0]} is on {seen[1].device}: move one"
            )
        if tensor.stride(-1) != 1 and tensor.shape[-1] != 1:
            raise ValueError(
                f"{op}: {name} has strides {list(tensor.stride())}: its rows must be contiguous; "
                "call .contiguous() first"
            )
        seen = seen or (name, tensor)
    return sizes


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
