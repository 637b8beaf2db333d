"""Token log-probabilities in tiles of rows and vocabulary, logits recomputed in the backward pass.

The vocabulary is the outer loop: a block of the head, and of its gradient, is fetched once for all
rows.

Where one tile holds the whole vocabulary, the forward takes the steps that a sampler takes, in its
order: the logits, divided by the temperature, those without a chance at minus infinity, and
`log_softmax` over each row. On a CPU in float32 the log-probabilities then have the sampler's bits.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import log_softmax

from kernels.precision import widen
from kernels.token_logprobs.support import Support

ROWS = 256
"""Rows of a tile of logits."""
COLUMNS = 2048
"""Tokens of the vocabulary in a tile: 2 MiB of float32, which stays in the cache."""


class TiledTokenLogprobs(torch.autograd.Function):
    """See `kernels.token_logprobs`."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        hidden: Tensor,
        head_weight: Tensor,
        targets: Tensor,
        temperature: float,
        support: Support | None,
    ) -> tuple[Tensor, Tensor]:
        """Take whole rows if a tile holds them, else run over the vocabulary."""
        score = score_whole if len(head_weight) <= COLUMNS else score_in_tiles
        scores = score(widen(hidden), head_weight, targets, temperature, support)
        logprobs, entropy, log_normalizer = scores
        ctx.save_for_backward(hidden, head_weight, targets, entropy, log_normalizer)
        ctx.temperature = temperature
        ctx.support = support
        return logprobs, entropy

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        *grads: Tensor,
    ) -> tuple[Tensor, Tensor, None, None, None]:
        """Recompute each tile of logits and push its gradient through both factors."""
        hidden, head_weight, targets, entropy, log_normalizer = ctx.saved_tensors
        logprob_grad, entropy_grad = grads
        has_entropy_grad = bool(entropy_grad.any())
        cooled = widen(hidden) / ctx.temperature
        hidden_grad = torch.zeros_like(cooled)
        weight_grad = torch.empty_like(head_weight)
        for columns in slices(len(head_weight), COLUMNS):
            block = widen(head_weight[columns])
            block_grad = torch.zeros_like(block)
            for rows in slices(len(targets), ROWS):
                logp = torch.addmm(-log_normalizer[rows, None], cooled[rows], block.T)
                logits_grad = logp.exp()
                if has_entropy_grad:
                    logp.add_(entropy[rows, None]).mul_(-entropy_grad[rows, None])
                    logits_grad.mul_(logp.sub_(logprob_grad[rows, None]))
                else:
                    logits_grad.mul_(-logprob_grad[rows, None])
                if ctx.support is not None:
                    logits_grad.masked_fill_(ctx.support.excludes(rows, columns), 0.0)
                place, is_inside = places(targets[rows] - columns.start, len(block))
                logits_grad.scatter_add_(1, place, (logprob_grad[rows] * is_inside)[:, None])
                hidden_grad[rows].addmm_(logits_grad, block)
                block_grad.addmm_(logits_grad.T, cooled[rows])
            weight_grad[columns] = block_grad
        return hidden_grad.div_(ctx.temperature).to(hidden.dtype), weight_grad, None, None, None


def score_whole(
    hidden: Float[Tensor, "T D"],
    head_weight: Float[Tensor, "W D"],
    targets: Int[Tensor, " T"],
    temperature: float,
    support: Support | None,
) -> tuple[Float[Tensor, " T"], Float[Tensor, " T"], Float[Tensor, " T"]]:
    """Score each row as a sampler does; see `RunningSums.results` for what is returned."""
    head = widen(head_weight).T
    logprobs, entropy, log_normalizer = hidden.new_empty(3, len(targets)).unbind()
    for rows in slices(len(targets), ROWS):
        logits = (hidden[rows] @ head).div_(temperature)
        excluded = None if support is None else support.excludes(rows, slice(0, len(head_weight)))
        if excluded is not None:
            logits.masked_fill_(excluded, -math.inf)
        logp = log_softmax(logits, dim=1)
        logprobs[rows] = logp.gather(1, targets[rows, None].long()).squeeze(1)
        log_normalizer[rows] = logits.amax(dim=1) - logp.amax(dim=1)
        chance = logp.exp()
        if excluded is not None:
            logp.masked_fill_(excluded, 0.0)
        entropy[rows] = -logp.mul(chance).sum(dim=1)
    return logprobs, entropy, log_normalizer


def score_in_tiles(
    hidden: Float[Tensor, "T D"],
    head_weight: Float[Tensor, "W D"],
    targets: Int[Tensor, " T"],
    temperature: float,
    support: Support | None,
) -> tuple[Float[Tensor, " T"], Float[Tensor, " T"], Float[Tensor, " T"]]:
    """Run over the vocabulary with running sums per row; returns `RunningSums.results`."""
    cooled = hidden / temperature
    sums = RunningSums(len(targets), like=cooled)
    for columns in slices(len(head_weight), COLUMNS):
        block = widen(head_weight[columns])
        for rows in slices(len(targets), ROWS):
            excluded = None if support is None else support.excludes(rows, columns)
            sums.add(rows, cooled[rows] @ block.T, targets[rows] - columns.start, excluded)
    return sums.results()


class RunningSums:
    """What each row keeps of the logits that it has seen."""

    def __init__(self, num_rows: int, like: Tensor) -> None:
        # Finite, so that a difference of two maxima is a number. No logit is as low.
        self._highest = like.new_full((num_rows,), torch.finfo(like.dtype).min / 2)
        self._total = like.new_zeros(num_rows)
        self._spread = like.new_zeros(num_rows)
        self._target = like.new_zeros(num_rows)

    def add(
        self,
        rows: slice,
        logits: Float[Tensor, "R C"],
        target: Int[Tensor, " R"],
        excluded: Bool[Tensor, "R C"] | None = None,
    ) -> None:
        """Take in a tile.

        Args:
            rows: Which rows the tile has.
            logits: Overwritten.
            target: Column of each row's target, outside of 0 .. C - 1 where another tile has it.
            excluded: Tokens that had no chance.
        """
        if excluded is not None:
            logits.masked_fill_(excluded, -math.inf)
        place, is_inside = places(target, logits.shape[1])
        target_logit = logits.gather(1, place).squeeze(1)
        self._target[rows] = torch.where(is_inside, target_logit, self._target[rows])

        before, total = self._highest[rows], self._total[rows]
        highest = torch.maximum(before, logits.amax(dim=1))
        rise = before - highest
        kept = rise.exp()
        below = logits.sub_(highest[:, None])
        weights = below.exp()
        if excluded is not None:
            below.masked_fill_(excluded, 0.0)  # a weight of 0 times minus infinity is no number
        spread = (self._spread[rows] + rise * total) * kept
        self._total[rows] = total * kept + weights.sum(dim=1)
        self._spread[rows] = spread + weights.mul_(below).sum(dim=1)
        self._highest[rows] = highest

    def results(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities, entropies and logarithms of the normalizer, each [T]."""
        log_total = self._total.log()
        logprobs = self._target - self._highest - log_total
        return logprobs, log_total - self._spread / self._total, self._highest + log_total


def slices(length: int, step: int) -> Iterator[slice]:
    """Cut `length` into slices of `step`, the last one shorter."""
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


def places(target: Int[Tensor, " R"], width: int) -> tuple[Int[Tensor, "R 1"], Tensor]:
    """Return a column of the tile for each target, and whether it is the target's own."""
    place = target.long().clamp(0, width - 1)
    return place[:, None], place == target
