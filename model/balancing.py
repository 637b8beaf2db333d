"""Quantile balancing: corrections under which all experts of a layer are chosen equally often.

It needs no auxiliary loss and no step size. A router chooses, for each of m tokens, the A of n
experts with the highest s + b (s: scores in (0, 1), b: `e_score_correction_bias`). One update, from
the scores of one step:

    alpha_t = the (A+1)-th highest of s_t + b        score of the first rejected expert
    r_tj    = alpha_t - s_tj                         margin: what b_j must exceed for t to take j
    b_j    <- the A/n-quantile of r_1j .. r_mj       so that a share A/n of the tokens takes j
    b      <- b - mean(b)                            a common shift chooses nothing else

and the new b serves from the NEXT step on: a step routes all its micro-batches alike.

Why: with thresholds alpha as they are, "t takes j" is s_tj + b_j > alpha_t, that is b_j > r_tj, and
this agrees with the choice that was made: the A accepted experts lie above alpha_t, the others at
or below. Each b_j alone then decides how many tokens take j, and the quantile is where these are
m A / n. Thresholds and corrections are the two blocks of the dual of the balanced assignment,

    min   sum_tj max(0, s_tj + b_j - alpha_t) + A sum_t alpha_t - (m A / n) sum_j b_j
    alpha, b

whose minimum over alpha at fixed b is reached by the alpha above, and whose minimum over b at fixed
alpha by the quantiles: an update never raises it. What moving b_j alone would do to the real
choice depends on the token: j has to pass the A-th best of the OTHER experts. For a token that took
j this is the first rejected one, alpha_t; for one that did not, it is the last accepted, above
alpha_t. So an expert with too many tokens ends at its share exactly, and one with too few at or
below it, until the thresholds follow in the next update.

`exact_correction` sorts; it is the definition. `MarginHistogram` counts into bins instead, so that
margins need not be kept: counts add up over micro-batches and over ranks.

Source: Kimi K3 report (arXiv 2607.24653), section 2.3.3 and appendices C and D.
"""

import torch
import torch.distributed as dist
from jaxtyping import Float, Float32, Int32
from torch import Tensor, nn

from model.moe_layer import Router

NUM_BINS = 1000
"""Of the histogram over [min b - 1, max b + 1], which holds every margin."""


def margins(
    scores: Float[Tensor, "T E"], correction: Float[Tensor, " E"], num_chosen: int
) -> Float[Tensor, "T E"]:
    """Return r: what the correction of each expert must exceed for each token to take it.

    Args:
        scores: Of a router.
        correction: With which the tokens were routed.
        num_chosen: A, experts per token, fewer than E.
    """
    first_rejected = (scores + correction).topk(num_chosen + 1, dim=1).values[:, -1:]
    return first_rejected - scores


def exact_correction(margin: Float[Tensor, "T E"], num_chosen: int) -> Float[Tensor, " E"]:
    """Return the next correction from all margins of a step at once.

    Args:
        margin: From `margins`, at least one token.
        num_chosen: A, experts per token.
    """
    num_tokens, num_experts = margin.shape
    rank = _fair_share(num_tokens, num_chosen, num_experts)
    return _centred(margin.kthvalue(rank, dim=0).values)


class MarginHistogram:
    """Margins of one step and several routers, counted into uniform bins.

    The bins depend on the corrections alone, which all micro-batches and ranks of a step share.
    """

    def __init__(self, corrections: Float32[Tensor, "L E"]) -> None:
        """Lay the bins over all margins that can occur under `corrections`.

        Scores lie in (0, 1), so alpha_t in (min b, max b + 1) and a margin within 1 of [min b,
        max b].
        """
        self._low = corrections.amin(dim=1) - 1.0
        self._width = (corrections.amax(dim=1) + 1.0 - self._low) / NUM_BINS
        num_layers, num_experts = corrections.shape
        self.counts: Int32[Tensor, "L E N"] = corrections.new_zeros(
            num_layers, num_experts, NUM_BINS, dtype=torch.int32
        )
        """N = NUM_BINS."""

    @property
    def bin_width(self) -> Float32[Tensor, " L"]:
        """Return the width of a bin in each layer."""
        return self._width

    def add(self, layer: int, margin: Float[Tensor, "T E"]) -> None:
        """Count the margins of some tokens of one layer."""
        place = ((margin - self._low[layer]) / self._width[layer]).long()
        place = place.clamp_(0, NUM_BINS - 1).t()
        ones = torch.ones_like(place, dtype=torch.int32)
        self.counts[layer].scatter_add_(1, place, ones)

    def reduce(self) -> None:
        """Add up over all ranks, where torch.distributed runs: one all-reduce for all layers."""
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(self.counts)

    def corrections(self, num_chosen: int) -> Float32[Tensor, "L E"]:
        """Return the next corrections: within a bin's width of `exact_correction`, up to the mean.

        The first bin at which the running count reaches ceil(m A / n), and inside it the place that
        its count reaches if margins lie evenly in it. (The bin's edge would not do: margins pile up
        at b itself, those of first rejected experts, and b would not leave its bin.)

        Args:
            num_chosen: A, experts per token.
        """
        num_tokens = int(self.counts[0, 0].sum())
        assert num_tokens > 0, "no margin was counted"
        rank = _fair_share(num_tokens, num_chosen, self.counts.shape[1])
        running = self.counts.cumsum(dim=2)
        reached = (running < rank).sum(dim=2, keepdim=True)
        inside = self.counts.gather(2, reached)
        before = running.gather(2, reached) - inside
        place = (reached + (rank - before) / inside).squeeze(2)
        return _centred(self._low.unsqueeze(1) + self._width.unsqueeze(1) * place)


class QuantileBalancer:
    """Keeps the experts of a model in balance while it trains.

    Worked example:

        balancer = QuantileBalancer(model)
        for batch in batches:
            for micro_batch in batch:
                loss(model, micro_batch).backward()    # the routers' scores are counted
            optimizer.step()
            balancer.update()                          # new corrections, from the next step on
    """

    def __init__(self, model: nn.Module) -> None:
        """Observe every `Router` of `model`; a model without routers has nothing to balance.

        Raises:
            ValueError: each token passes all experts.
        """
        self._routers = [module for module in model.modules() if isinstance(module, Router)]
        for layer, router in enumerate(self._routers):
            if router.num_chosen >= len(router.weight):
                raise ValueError(
                    f"each token passes all {len(router.weight)} experts: there is nothing to "
                    "balance"
                )
            router.observer = _Observer(self, layer)
        self._histogram: MarginHistogram | None = None

    def observe(self, layer: int, scores: Float32[Tensor, "T E"]) -> None:
        """Count the margins of one router's forward.

        A forward without gradient is no training: what an evaluation routes is not counted.

        Args:
            layer: Index among the routers.
            scores: Detached.
        """
        if not torch.is_grad_enabled():
            return
        if self._histogram is None:
            self._histogram = MarginHistogram(self._corrections())
        router = self._routers[layer]
        self._histogram.add(layer, margins(scores, router.correction, router.num_chosen))

    @torch.no_grad()
    def update(self) -> None:
        """End a step: set the corrections in place, from what was counted since the last update.

        With torch.distributed every rank calls it, and each of them has counted tokens.
        """
        if self._histogram is None:
            return
        self._histogram.reduce()
        corrections = self._histogram.corrections(self._routers[0].num_chosen)
        for router, correction in zip(self._routers, corrections, strict=True):
            router.correction.copy_(correction)
        self._histogram = None

    def _corrections(self) -> Float32[Tensor, "L E"]:
        return torch.stack([router.correction for router in self._routers])


class _Observer:
    """What a router calls: knows which of the routers it watches."""

    def __init__(self, balancer: QuantileBalancer, layer: int) -> None:
        self._balancer = balancer
        self._layer = layer

    def __call__(self, scores: Tensor) -> None:
        self._balancer.observe(self._layer, scores)


def _fair_share(num_tokens: int, num_chosen: int, num_experts: int) -> int:
    """Return ceil(m A / n), tokens per expert, without rounding in between."""
    return -(-num_tokens * num_chosen // num_experts)


def _centred(correction: Float[Tensor, " *L E"]) -> Float[Tensor, " *L E"]:
    return correction - correction.mean(dim=-1, keepdim=True)
