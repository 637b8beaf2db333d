"""The kernels of token log-probabilities as a function autograd knows.

Forward: the vocabulary is divided into stretches, so that few rows occupy a device as well; the
sums of the stretches are few, and merged by PyTorch. Backward: one block of the gradient of the
logits at a time. Both products with it are PyTorch's, whose sums are in float32.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor
from triton import knobs

from kernels.token_logprobs.triton_kernels import CONFIGS, Config, logit_grads, score_split

SPLITS = 32
"""Stretches of the vocabulary, at most."""
GRAD_ROWS = 8192
"""Rows of a block of the gradient of the logits."""
GRAD_COLUMNS = 4096
"""Columns of it: 64 MiB in bfloat16."""


@dataclass(frozen=True, slots=True)
class Call:
    """The tensors of one call, contiguous."""

    hidden: Float[Tensor, "T D"]
    head: Float[Tensor, "W D"]
    targets: Int[Tensor, " T"]
    inverse_temperature: float

    @property
    def dot_type(self) -> tl.dtype:
        """Return the type of the factors: the inputs', where a matrix unit has it."""
        # The interpreter multiplies bfloat16 wrongly.
        is_half = self.hidden.dtype in (torch.bfloat16, torch.float16)
        if not is_half or knobs.runtime.interpret:
            return tl.float32
        return tl.bfloat16 if self.hidden.dtype == torch.bfloat16 else tl.float16

    @property
    def config(self) -> Config:
        """Return the configuration that is launched."""
        return CONFIGS[tl.float32 if self.dot_type == tl.float32 else tl.bfloat16][0]

    def launch(
        self,
        kernel: Any,  # noqa: ANN401  what `triton.jit` returns has no public type
        grid: tuple[int, int],
        *arguments: Tensor | float,
    ) -> None:
        """Run a kernel in that configuration."""
        kernel[grid](
            *arguments,
            self.inverse_temperature,
            D=self.hidden.shape[1],
            DOT=self.dot_type,
            **self.config.constants,
            **self.config.options,
        )


def run_scores(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities, entropies and logarithms of the normalizer, each [T], float32."""
    num_rows, vocabulary, config = len(call.hidden), len(call.head), call.config
    blocks = triton.cdiv(vocabulary, config.columns)
    split_columns = triton.cdiv(blocks, SPLITS) * config.columns
    num_splits = triton.cdiv(vocabulary, split_columns)
    sums = [call.hidden.new_empty(num_splits, num_rows, dtype=torch.float32) for _ in range(4)]
    call.launch(
        score_split,
        (triton.cdiv(num_rows, config.rows), num_splits),
        call.hidden,
        call.head,
        call.targets,
        *sums,
        num_rows,
        vocabulary,
        split_columns,
    )
    highest, total, spread, target = sums
    peak = highest.amax(dim=0)
    rise = highest - peak
    kept = rise.exp()
    spread = ((spread + rise * total) * kept).sum(dim=0)
    total = (total * kept).sum(dim=0)
    log_total = total.log()
    logprobs = target.sum(dim=0) - peak - log_total
    return logprobs, log_total - spread / total, peak + log_total


def run_gradients(
    call: Call,
    entropy: Float[Tensor, " T"],
    log_normalizer: Float[Tensor, " T"],
    logprob_grad: Float[Tensor, " T"],
    entropy_grad: Float[Tensor, " T"],
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the hidden states and of the head, in their types."""
    per_row = call.targets, log_normalizer, entropy, logprob_grad, entropy_grad
    hidden_grad = torch.zeros_like(call.hidden, dtype=torch.float32)
    head_grad = torch.empty_like(call.head)
    for first in range(0, len(call.head), GRAD_COLUMNS):
        block = call.head[first : first + GRAD_COLUMNS]
        block_grad = torch.zeros_like(block, dtype=torch.float32)
        for start in range(0, len(call.hidden), GRAD_ROWS):
            part = slice(start, start + GRAD_ROWS)
            rows = call.hidden[part]
            grads = rows.new_empty(len(rows), len(block))
            grid = (
                triton.cdiv(len(rows), call.config.rows),
                triton.cdiv(len(block), call.config.columns),
            )
            tensors = rows, block, *(x[part] for x in per_row), grads
            call.launch(logit_grads, grid, *tensors, len(rows), len(block), first)
            hidden_grad[part] += product(grads, block)
            block_grad += product(grads.t(), rows)
        head_grad[first : first + GRAD_COLUMNS] = block_grad
    return hidden_grad.to(call.hidden.dtype), head_grad


def product(a: Float[Tensor, "M K"], b: Float[Tensor, "K N"]) -> Float[Tensor, "M N"]:
    """Multiply two matrices of one type into float32."""
    if a.dtype == torch.float32:
        return a @ b
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()


class TritonTokenLogprobs(torch.autograd.Function):
    """The kernels as a function autograd knows."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        hidden: Tensor,
        head_weight: Tensor,
        targets: Tensor,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        """Score."""
        call = Call(
            hidden.contiguous(), head_weight.contiguous(), targets.contiguous(), 1 / temperature
        )
        logprobs, entropy, log_normalizer = run_scores(call)
        ctx.save_for_backward(call.hidden, call.head, call.targets, entropy, log_normalizer)
        ctx.inverse_temperature = call.inverse_temperature
        return logprobs, entropy

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        *grads: Tensor,
    ) -> tuple[Tensor, Tensor, None, None]:
        """Compute the logits again, block by block."""
        hidden, head, targets, entropy, log_normalizer = ctx.saved_tensors
        call = Call(hidden, head, targets, ctx.inverse_temperature)
        pulls = (grad.contiguous() for grad in grads)
        return *run_gradients(call, entropy, log_normalizer, *pulls), None, None


def token_logprobs_triton(
    hidden: Float[Tensor, "T D"],
    head_weight: Float[Tensor, "W D"],
    targets: Int[Tensor, " T"],
    temperature: float,
) -> tuple[Float[Tensor, " T"], Float[Tensor, " T"]]:
    """Run the kernels; see `kernels.token_logprobs`."""
    return TritonTokenLogprobs.apply(hidden, head_weight, targets, temperature)  # pyright: ignore[reportReturnType]  torch types apply as Any
