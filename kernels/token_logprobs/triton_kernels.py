"""Token log-probabilities on a GPU: tiles of logits that live in registers.

`score_split` takes a block of rows over one stretch of the vocabulary and leaves the running sums
of `kernels.token_logprobs`; `logit_grads` computes a tile of logits again and writes its gradient.
`launch.py` runs them.
"""

# A kernel's arguments are what a launch passes by position, pointers and numbers of the device.
# ruff: noqa: ANN001, ANN201, PLR0917

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from triton import knobs

from kernels.aot import AotCase

LOWEST = tl.constexpr(-1e30)
"""Highest logit before any was seen: finite, so that a difference of two is a number."""
FLOAT32 = tl.constexpr("ieee" if knobs.runtime.interpret else "bf16x6")
"""How float32 matrices are multiplied: as six products of their bfloat16 parts, which keep 24 bits
and run on every target's matrix units."""


@triton.jit
def logits_tile(
    hidden,
    head,
    rows,
    columns,
    num_rows,
    num_columns,
    inverse_temperature,
    D: tl.constexpr,
    DOT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):
    """Return logits of a block of rows and columns; any number outside of the matrices."""
    logits = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), tl.float32)
    hidden_rows = hidden + rows.to(tl.int64)[:, None] * D
    head_rows = head + columns.to(tl.int64)[None, :] * D
    for first in range(0, D, BLOCK_WIDTH):
        width = first + tl.arange(0, BLOCK_WIDTH)
        row_mask = (rows < num_rows)[:, None] & (width < D)[None, :]
        column_mask = (columns < num_columns)[None, :] & (width < D)[:, None]
        left = tl.load(hidden_rows + width[None, :], row_mask, 0.0)
        right = tl.load(head_rows + width[:, None], column_mask, 0.0)
        logits += tl.dot(left.to(DOT), right.to(DOT), input_precision=FLOAT32)
    return logits * inverse_temperature


@triton.jit
def score_split(
    hidden,
    head,
    targets,
    highest_out,
    total_out,
    spread_out,
    target_out,
    num_rows,
    num_columns,
    split_columns,
    inverse_temperature,
    D: tl.constexpr,
    DOT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):
    """Write the running sums of a block of rows over one stretch of the vocabulary."""
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    begin = tl.program_id(1) * split_columns
    end = tl.minimum(begin + split_columns, num_columns)
    target = tl.load(targets + rows, rows < num_rows, -1)
    highest = tl.full((BLOCK_ROWS,), LOWEST, tl.float32)
    total = tl.zeros((BLOCK_ROWS,), tl.float32)
    spread = tl.zeros((BLOCK_ROWS,), tl.float32)
    target_logit = tl.zeros((BLOCK_ROWS,), tl.float32)
    for first in range(begin, end, BLOCK_COLUMNS):
        columns = first + tl.arange(0, BLOCK_COLUMNS)
        logits = logits_tile(
            hidden,
            head,
            rows,
            columns,
            num_rows,
            num_columns,
            inverse_temperature,
            D,
            DOT,
            BLOCK_ROWS,
            BLOCK_COLUMNS,
            BLOCK_WIDTH,
        )
        inside = (columns < end)[None, :]
        is_target = inside & (columns[None, :] == target[:, None])
        target_logit += tl.sum(tl.where(is_target, logits, 0.0), axis=1)
        before = highest
        highest = tl.maximum(before, tl.max(tl.where(inside, logits, LOWEST), axis=1))
        rise = before - highest
        kept = tl.exp(rise)
        below = tl.where(inside, logits - highest[:, None], 0.0)
        weights = tl.where(inside, tl.exp(below), 0.0)
        spread = (spread + rise * total) * kept + tl.sum(weights * below, axis=1)
        total = total * kept + tl.sum(weights, axis=1)
    places = tl.program_id(1).to(tl.int64) * num_rows + rows
    tl.store(highest_out + places, highest, rows < num_rows)
    tl.store(total_out + places, total, rows < num_rows)
    tl.store(spread_out + places, spread, rows < num_rows)
    tl.store(target_out + places, target_logit, rows < num_rows)


@triton.jit
def logit_grads(
    hidden,
    head,
    targets,
    log_normalizer,
    entropy,
    logprob_grad,
    entropy_grad,
    grads,
    num_rows,
    num_columns,
    first_column,
    inverse_temperature,
    D: tl.constexpr,
    DOT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):
    """Write the gradient of a tile of hidden @ head.T; `head` is the block from `first_column`."""
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    columns = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    logits = logits_tile(
        hidden,
        head,
        rows,
        columns,
        num_rows,
        num_columns,
        inverse_temperature,
        D,
        DOT,
        BLOCK_ROWS,
        BLOCK_COLUMNS,
        BLOCK_WIDTH,
    )
    mask = rows < num_rows
    target = tl.load(targets + rows, mask, -1) - first_column
    a = tl.load(logprob_grad + rows, mask, 0.0)
    b = tl.load(entropy_grad + rows, mask, 0.0)
    # Above 0 only beyond the matrix: there exp could overflow.
    logp = tl.minimum(logits - tl.load(log_normalizer + rows, mask, 0.0)[:, None], 0.0)
    pull = a[:, None] + b[:, None] * (logp + tl.load(entropy + rows, mask, 0.0)[:, None])
    grad = tl.where(columns[None, :] == target[:, None], a[:, None], 0.0) - tl.exp(logp) * pull
    places = rows.to(tl.int64)[:, None] * num_columns + columns[None, :]
    inside = mask[:, None] & (columns < num_columns)[None, :]
    tl.store(grads + places, (grad * inverse_temperature).to(grads.dtype.element_ty), inside)


@dataclass(frozen=True, slots=True)
class Config:
    """One way to launch a kernel."""

    rows: int
    """Rows of a tile of logits."""
    columns: int
    """Columns of it."""
    width: int
    """Terms of a logit that one step sums."""
    num_warps: int
    """Warps per program."""
    num_stages: int
    """Depth of the software pipeline."""

    def __str__(self) -> str:
        tile = f"{self.rows}x{self.columns}x{self.width}"
        return f"tile {tile} warps {self.num_warps} stages {self.num_stages}"

    @property
    def constants(self) -> dict[str, int]:
        """Return the compile-time arguments of a kernel."""
        return {
            "BLOCK_ROWS": self.rows,
            "BLOCK_COLUMNS": self.columns,
            "BLOCK_WIDTH": self.width,
        }

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of the compiler."""
        return {
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "enable_fp_fusion": True,
        }


CONFIGS = {
    tl.bfloat16: (
        Config(128, 128, 64, 8, 2),
        Config(128, 128, 64, 8, 3),
        Config(128, 256, 64, 8, 3),
        Config(64, 128, 64, 4, 3),
    ),
    tl.float32: (Config(64, 64, 32, 4, 2), Config(64, 64, 32, 8, 2), Config(32, 64, 32, 4, 2)),
}
"""What may be launched for each type of the factors; the first is."""


def aot_cases() -> Sequence[AotCase]:
    """List every configuration at the widths of `k3` and of `tiny`."""
    factors = ("hidden", "head")
    kernels = (
        (score_split, ("highest_out", "total_out", "spread_out", "target_out"), "split_columns"),
        (
            logit_grads,
            ("log_normalizer", "entropy", "logprob_grad", "entropy_grad"),
            "first_column",
        ),
    )
    cases: list[AotCase] = []
    for kernel, vectors, place in kernels:
        for width, x, dot in ((7168, "bf16", tl.bfloat16), (128, "fp32", tl.float32)):
            signature = dict.fromkeys((*factors, "grads"), f"*{x}") | {"targets": "*i64"}
            signature |= dict.fromkeys(vectors, "*fp32") | {"inverse_temperature": "fp32"}
            signature |= dict.fromkeys(("num_rows", "num_columns", place), "i32")
            signature = {k: v for k, v in signature.items() if k in kernel.arg_names}
            cases += [
                AotCase(
                    name=f"{kernel.__name__} D={width} {x} {config}",
                    kernel=kernel,
                    signature=signature,
                    constexprs={"D": width, "DOT": dot, **config.constants},
                    chosen=config is CONFIGS[dot][0],
                    divisible_by_16=[k for k, v in signature.items() if v[0] == "*"],
                    **config.options,
                )
                for config in CONFIGS[dot]
            ]
    return cases
