"""Token log-probabilities over chunks of rows, logits recomputed in the backward pass."""

from typing import Any

import torch
from torch import Tensor

ROWS = 1024
"""Rows of logits held at once."""


class ChunkedTokenLogprobs(torch.autograd.Function):
    """See `kernels.token_logprobs`."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        hidden: Tensor,
        head_weight: Tensor,
        targets: Tensor,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        """Score the targets chunk by chunk."""
        logprobs = hidden.new_empty(len(targets))
        entropy = hidden.new_empty(len(targets))
        log_sums = hidden.new_empty(len(targets))
        for start in range(0, len(targets), ROWS):
            rows = slice(start, start + ROWS)
            logits = (hidden[rows] @ head_weight.T).div_(temperature)
            chosen = logits.gather(1, targets[rows, None].long()).squeeze(1)
            log_sum = logits.logsumexp(dim=-1)
            mean_logit = (logits * (logits - log_sum[:, None]).exp_()).sum(dim=-1)
            logprobs[rows] = chosen - log_sum
            entropy[rows] = log_sum - mean_logit
            log_sums[rows] = log_sum
        ctx.save_for_backward(hidden, head_weight, targets, log_sums, entropy)
        ctx.temperature = temperature
        return logprobs, entropy

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        *grads: Tensor,
    ) -> tuple[Tensor, Tensor, None, None]:
        """Recompute each chunk's logits and push its gradient through them."""
        hidden, head_weight, targets, log_sums, entropy = ctx.saved_tensors
        logprob_grad, entropy_grad = grads
        has_entropy_grad = bool(entropy_grad.any())
        hidden_grad = torch.empty_like(hidden)
        weight_grad = torch.zeros_like(head_weight)
        for start in range(0, len(targets), ROWS):
            rows = slice(start, start + ROWS)
            logp = (hidden[rows] @ head_weight.T).div_(ctx.temperature).sub_(log_sums[rows, None])
            p = logp.exp()
            pull = logprob_grad[rows, None].expand_as(p)
            if has_entropy_grad:
                pull = pull + entropy_grad[rows, None] * logp.add_(entropy[rows, None])
            logits_grad = p.mul_(pull).neg_()
            logits_grad.scatter_add_(1, targets[rows, None].long(), logprob_grad[rows, None])
            logits_grad.div_(ctx.temperature)
            hidden_grad[rows] = logits_grad @ head_weight
            weight_grad.addmm_(logits_grad.T, hidden[rows])
        return hidden_grad, weight_grad, None, None
