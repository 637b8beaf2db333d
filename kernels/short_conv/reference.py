"""The short convolution as a sum of shifted products, and its gradients as the same sums.

Sequences of one length, a batch of single tokens among them, are rows of a batch: each is put
behind its tail, and the sum is one of whole shifted slices. In a pack of unequal lengths most
tokens still have all their inputs in the pack, and slices of the pack serve them. The first I - 1
tokens of each sequence, its head, are computed apart, behind the tail as above, and take the place
of what the slices gave across the boundary.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.precision import widen


def causal_conv(
    x: Float[Tensor, "T C"],
    weight: Float[Tensor, "C I"],
    bounds: Sequence[int],
    tails: Float[Tensor, "S N C"] | None = None,
) -> Float[Tensor, "T C"]:
    """See `kernels.short_conv`; `bounds` are the numbers of `cu_seqlens`."""
    num_sequences, channels = len(bounds) - 1, x.shape[1]
    if tails is None:
        tails = x.new_zeros(num_sequences, weight.shape[1] - 1, channels)
    x_wide, weight, tails = widen(x), widen(weight), widen(tails)
    if has_one_length(bounds):
        rows = x_wide.reshape(num_sequences, -1, channels)
        output = ShiftedSum.apply(torch.cat([tails, rows], dim=1), weight).flatten(0, 1)  # pyright: ignore[reportOptionalMemberAccess]  torch types apply as Any
    else:
        output = PackedConv.apply(x_wide, weight, tails, bounds)
    return output.to(x.dtype)  # pyright: ignore[reportOptionalMemberAccess]  torch types apply as Any


def has_one_length(bounds: Sequence[int]) -> bool:
    """Whether all sequences of a pack are of one length."""
    return len({stop - start for start, stop in itertools.pairwise(bounds)}) == 1


class ShiftedSum(torch.autograd.Function):
    """y[s, t] = sum_i weight[:, i] context[s, t + i], for context [S, I - 1 + T, C]."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        context: Tensor,
        weight: Tensor,
    ) -> Tensor:
        """Sum the shifted products."""
        taps = weight.T.contiguous()  # a filter's taps lie one channel apart: fast rows
        num_sequences, length, channels = context.shape
        output = context.new_empty(num_sequences, length - len(taps) + 1, channels)
        _convolve(context, taps, output)
        ctx.save_for_backward(context, taps)
        return output

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        *grads: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Send the gradient back along each shift."""
        context, taps = ctx.saved_tensors
        context_grad, taps_grad = torch.zeros_like(context), torch.zeros_like(taps)
        _convolve_back(grads[0], context, taps, context_grad, taps_grad)
        return context_grad, taps_grad.T


@dataclass(frozen=True, slots=True)
class Heads:
    """Where the first tokens of each sequence lie, in the pack and in a table [S, `count`]."""

    rows: Int[Tensor, " M"]
    """Rows of the pack."""
    slots: Int[Tensor, " M"]
    """Rows of the flattened table."""
    count: int
    """Tokens per sequence in the table; those past a sequence's end stay zero."""

    @classmethod
    def of(cls, bounds: Sequence[int], most: int, device: torch.device) -> "Heads":
        """Find up to `most` first tokens of each sequence."""
        spans = list(itertools.pairwise(bounds))
        count = min(most, max(stop - start for start, stop in spans))
        rows: list[int] = []
        slots: list[int] = []
        for sequence, (start, stop) in enumerate(spans):
            length = min(count, stop - start)
            rows.extend(range(start, start + length))
            slots.extend(range(sequence * count, sequence * count + length))
        return cls(torch.tensor(rows, device=device), torch.tensor(slots, device=device), count)

    def table(self, x: Float[Tensor, "T C"], num_sequences: int) -> Float[Tensor, "S N C"]:
        """Copy the heads' rows of `x` into a table."""
        flat = x.new_zeros(num_sequences * self.count, x.shape[1])
        flat.index_copy_(0, self.slots, x.index_select(0, self.rows))
        return flat.view(num_sequences, self.count, x.shape[1])

    def select(self, table: Float[Tensor, "S N C"]) -> Float[Tensor, "M C"]:
        """Undo `table`: the rows that are tokens."""
        return table.flatten(0, 1).index_select(0, self.slots)


class PackedConv(torch.autograd.Function):
    """The convolution of a pack of any lengths as a function of inputs, filters and tails."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        x: Tensor,
        weight: Tensor,
        tails: Tensor,
        bounds: Sequence[int],
    ) -> Tensor:
        """Convolve the pack as one sequence, then put the heads right."""
        taps = weight.T.contiguous()
        reach = len(taps) - 1
        heads = Heads.of(bounds, reach, x.device)
        context = torch.cat([tails, heads.table(x, len(tails))], dim=1)
        output = torch.empty_like(x, memory_format=torch.contiguous_format)
        if heads.count == reach:  # else every token is in a head
            _convolve(x, taps, output[reach:])
        outputs = x.new_empty(len(tails), heads.count, x.shape[1])
        _convolve(context, taps, outputs)
        output.index_copy_(0, heads.rows, heads.select(outputs))
        ctx.save_for_backward(x, taps, context)
        ctx.heads = heads
        return output

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        *grads: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, None]:
        """Send the gradient back along each shift, for the heads and for the rest."""
        x, taps, context = ctx.saved_tensors
        heads: Heads = ctx.heads
        reach = len(taps) - 1
        x_grad, taps_grad = torch.zeros_like(x), torch.zeros_like(taps)
        if heads.count == reach:
            rest = grads[0].index_fill(0, heads.rows, 0.0)
            _convolve_back(rest[reach:], x, taps, x_grad, taps_grad)
        context_grad = torch.zeros_like(context)
        table = heads.table(grads[0], len(context))
        _convolve_back(table, context, taps, context_grad, taps_grad)
        x_grad.index_add_(0, heads.rows, heads.select(context_grad[:, reach:]))
        return x_grad, taps_grad.T, context_grad[:, :reach], None


def _convolve(
    context: Float[Tensor, "*S P C"], taps: Float[Tensor, "I C"], output: Float[Tensor, "*S Q C"]
) -> None:
    """Write output[q] = sum_i taps[i] context[q + i], for Q = P - I + 1 tokens."""
    num_tokens = output.shape[-2]
    torch.mul(context.narrow(-2, 0, num_tokens), taps[0], out=output)
    for i in range(1, len(taps)):
        output.addcmul_(context.narrow(-2, i, num_tokens), taps[i])


def _convolve_back(
    grad: Float[Tensor, "*S Q C"],
    context: Float[Tensor, "*S P C"],
    taps: Float[Tensor, "I C"],
    context_grad: Float[Tensor, "*S P C"],
    taps_grad: Float[Tensor, "I C"],
) -> None:
    """Add to `context_grad` and `taps_grad` what `grad`, of `_convolve`'s output, gives them."""
    num_tokens, channels = grad.shape[-2:]
    for i in range(len(taps)):
        context_grad.narrow(-2, i, num_tokens).addcmul_(grad, taps[i])
        product = grad * context.narrow(-2, i, num_tokens)
        taps_grad[i] += product.view(-1, channels).sum(dim=0)


def shift_tails(
    x: Float[Tensor, "T C"],
    bounds: Sequence[int],
    tails: Float[Tensor, "S N C"] | None,
    reach: int,
) -> Float[Tensor, "S N C"]:
    """See `kernels.short_conv.last_inputs`; N = `reach`."""
    if has_one_length(bounds):
        recent = x.reshape(len(bounds) - 1, -1, x.shape[1])[:, -reach:]
        if tails is None:
            tails = x.new_zeros(len(bounds) - 1, reach, x.shape[1])
        return torch.cat([tails[:, recent.shape[1] :], recent], dim=1)
    taken: list[int] = []  # rows of x, and where they go
    taken_slots: list[int] = []
    kept: list[int] = []  # rows of the old tails, and where they go
    kept_slots: list[int] = []
    for sequence, (start, stop) in enumerate(itertools.pairwise(bounds)):
        first, after = sequence * reach, (sequence + 1) * reach
        length = min(reach, stop - start)
        taken.extend(range(stop - length, stop))
        taken_slots.extend(range(after - length, after))
        kept.extend(range(first + length, after))
        kept_slots.extend(range(first, after - length))
    new = x.new_zeros((len(bounds) - 1) * reach, x.shape[1])
    if tails is not None and kept:
        new = _copy_rows(new, kept_slots, tails.flatten(0, 1), kept)
    return _copy_rows(new, taken_slots, x, taken).view(-1, reach, x.shape[1])


def _copy_rows(
    into: Float[Tensor, "M C"],
    slots: Sequence[int],
    source: Float[Tensor, "N C"],
    rows: Sequence[int],
) -> Float[Tensor, "M C"]:
    """Return `into` with its rows `slots` replaced by the rows `rows` of `source`."""
    device = source.device
    picked = source.index_select(0, torch.tensor(rows, device=device))
    return into.index_copy(0, torch.tensor(slots, device=device), picked)
