"""Token log-probabilities over chunks of rows, logits recomputed in the backward pass."""

from typing import Any

import torch
from torch import Tensor

ROWS = 256
"""Rows of logits held at once: 1 MiB at a vocabulary of 1,024, which stays in the cache."""


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
        cooled = hidden / temperature
        logprobs = hidden.new_empty(len(targets))
        entropy = hidden.new_empty(len(targets))
        for start in range(0, len(targets), ROWS):
            rows = slice(start, start + ROWS)
            logp = (cooled[rows] @ head_weight.T).log_softmax(dim=-1)
            logprobs[rows] = logp.gather(1, targets[rows, None].long()).squeeze(1)
            entropy[rows] = -torch.linalg.vecdot(logp.exp(), logp)
        ctx.save_for_backward(cooled, head_weight, targets, entropy)
        ctx.temperature = temperature
        return logprobs, entropy

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        *grads: Tensor,
    ) -> tuple[Tensor, Tensor, None, None]:
        """Recompute each chunk's logits and push its gradient through them."""
        cooled, head_weight, targets, entropy = ctx.saved_tensors
        logprob_grad, entropy_grad = grads
        has_entropy_grad = bool(entropy_grad.any())
        hidden_grad = torch.empty_like(cooled)
        weight_grad = torch.zeros_like(head_weight)
        for start in range(0, len(targets), ROWS):
            rows = slice(start, start + ROWS)
            logp = (cooled[rows] @ head_weight.T).log_softmax(dim=-1)
            p = logp.exp()
            pull = -logprob_grad[rows, None]
            if has_entropy_grad:
                pull = pull - entropy_grad[rows, None] * logp.add_(entropy[rows, None])
            logits_grad = p.mul_(pull)
            logits_grad.scatter_add_(1, targets[rows, None].long(), logprob_grad[rows, None])
            hidden_grad[rows] = logits_grad @ head_weight
            weight_grad.addmm_(logits_grad.T, cooled[rows])
        return hidden_grad.div_(ctx.temperature), weight_grad, None, None
