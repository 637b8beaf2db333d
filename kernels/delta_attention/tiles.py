"""What the Triton kernels of delta attention share: rows of a chunk, tiles of a tensor, cases.

A chunk is 64 positions. Its tokens are rows of packed tensors [T, H, .]; a row of the chunk that
holds no token (before a sequence's first, after its last) reads as 0 and is never written. A token
with k = v = g = beta = 0 leaves the state alone, so the mathematics need not know.

The chunk table has a line of four numbers for each chunk: `origin`, the token of row 0 (it may lie
before the sequence, even below 0), `begin` and `end`, the chunk's tokens, and the sequence.
"""

# A kernel's arguments are what a launch passes by position, pointers and numbers of the device.
# ruff: noqa: ANN001, ANN201

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from kernels.aot import AotCase
from kernels.gate_bound import MIN_LOG_DECAY

CHUNK_TOKENS = 64
"""Positions per chunk."""
TILE_TOKENS = 16
"""Positions per tile: the rows of a chunk that share a reference for their decays."""
TILES_PER_CHUNK = CHUNK_TOKENS // TILE_TOKENS

CHUNK = tl.constexpr(CHUNK_TOKENS)
TILE = tl.constexpr(TILE_TOKENS)
TILES = tl.constexpr(TILES_PER_CHUNK)
LOG2_E = tl.constexpr(math.log2(math.e))
"""Gates are kept in bits, so that a decay is one exp2."""
MIDDLE = tl.constexpr(-MIN_LOG_DECAY * (TILE_TOKENS - 1) / 2 * math.log2(math.e))
"""Half of what a tile can decay by, bits: see `forward.score_tiles`."""
NEVER = tl.constexpr(float("-inf"))
"""Exponent of a decay that must read as 0."""
FLOAT32 = tl.constexpr("ieee" if knobs.runtime.interpret else "bf16x6")
"""How float32 matrices are multiplied: as six products of their bfloat16 parts, which keep 24 bits
and run on every target's units for matrix products."""
NEAR_FLOAT32 = tl.constexpr("ieee" if knobs.runtime.interpret else "bf16x3")
"""The same with three products, which keep 16 bits."""


@triton.jit
def chunk_bounds(chunks, chunk):
    """Return the origin, first token and end of a chunk."""
    line = chunks + 4 * chunk
    return tl.load(line), tl.load(line + 1), tl.load(line + 2)


@triton.jit
def token_rows(bounds, first, head, H: tl.constexpr, ROWS: tl.constexpr):
    """Return, for ROWS rows of a chunk from `first`, their row of [T * H, .] and whether it is."""
    origin, begin, end = bounds
    token = origin + first + tl.arange(0, ROWS)
    return token * H + head, (token >= begin) & (token < end)


@triton.jit
def load_tile(tensor, rows, valid, first, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Read columns `first` .. `first + BLOCK` of the given rows; 0 outside."""
    columns = first + tl.arange(0, BLOCK)
    mask = valid[:, None] & (columns < WIDTH)[None, :]
    return tl.load(tensor + rows[:, None] * WIDTH + columns[None, :], mask, 0.0)


@triton.jit
def store_tile(tensor, tile, rows, valid, first, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Write what `load_tile` reads, in the tensor's type."""
    columns = first + tl.arange(0, BLOCK)
    mask = valid[:, None] & (columns < WIDTH)[None, :]
    pointers = tensor + rows[:, None] * WIDTH + columns[None, :]
    tl.store(pointers, tile.to(tensor.dtype.element_ty), mask)


@triton.jit
def load_row(tensor, row, first, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Read columns `first` .. `first + BLOCK` of one row; 0 outside."""
    columns = first + tl.arange(0, BLOCK)
    return tl.load(tensor + row * WIDTH + columns, columns < WIDTH, 0.0)


@triton.jit
def load_matrix(
    tensor,
    index,
    first_row,
    first_column,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Read a block of matrix `index` of [., ROWS, COLUMNS]; 0 outside."""
    row = first_row + tl.arange(0, BLOCK_ROWS)
    rows = index.to(tl.int64) * ROWS + row
    return load_tile(tensor, rows, row < ROWS, first_column, COLUMNS, BLOCK_COLUMNS)


@triton.jit
def store_matrix(
    tensor,
    tile,
    index,
    first_column,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Write all rows of a block of columns of matrix `index`."""
    row = tl.arange(0, BLOCK_ROWS)
    rows = index.to(tl.int64) * ROWS + row
    store_tile(tensor, tile, rows, row < ROWS, first_column, COLUMNS, BLOCK_COLUMNS)


@triton.jit
def product(a, b, DOT: tl.constexpr):
    """Multiply two matrices whose entries are rounded to DOT, and sum in float32."""
    return tl.dot(a.to(DOT), b.to(DOT), input_precision=FLOAT32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a kernel is compiled for."""

    H: int
    """Heads."""
    K: int
    """Key width."""
    V: int
    """Value width."""
    DOT: tl.dtype
    """Type of the factors of matrix products: bfloat16, or float32 if the inputs are."""


@dataclass(frozen=True, slots=True)
class Config:
    """One way to launch a kernel."""

    block: int
    """Columns of K or V that one program, or one step of its loop, takes."""
    num_warps: int
    """Warps per program."""
    num_stages: int
    """Depth of the software pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel and its configurations."""

    function: Any
    """What `triton.jit` returned."""
    configs: Sequence[Config]
    """The first is launched, whatever the lengths of the sequences: a replayed chunk must meet the
    arithmetic of the whole sequence. The others are what a tuner may try."""
    float32: Config | None = None
    """Launched instead for float32 inputs: three parts of every factor take more registers."""
    split: Literal["K", "V", ""] = ""
    """Width that axis 2 of the grid divides into blocks, if any."""

    def chosen(self, shape: Shape) -> Config:
        """Return the configuration that a launch uses."""
        return self.float32 if self.float32 and tl.float32 == shape.DOT else self.configs[0]

    def launch(self, grid: tuple[int, int], shape: Shape, *tensors: Tensor) -> None:
        """Run the kernel on `grid`, to which `split` adds an axis."""
        config = self.chosen(shape)
        constants = self._constants(shape, config)
        if self.split:
            width = getattr(shape, self.split)
            grid = (*grid, triton.cdiv(width, constants[f"BLOCK_{self.split}"]))  # pyright: ignore[reportAssignmentType]
        self.function[grid](
            *tensors,
            **constants,
            num_warps=config.num_warps,
            num_stages=config.num_stages,
            enable_fp_fusion=True,
        )

    def aot_cases(self) -> Iterator[AotCase]:
        """List every configuration at the sizes of the presets `k3` and `tiny`."""
        for label, x, shape in AOT_SHAPES:
            for config in dict.fromkeys([*self.configs, self.chosen(shape)]):
                constants = self._constants(shape, config)
                tensors = [name for name in self.function.arg_names if name not in constants]
                yield AotCase(
                    name=f"{self.function.__name__} {label} block {config.block}"
                    f" warps {config.num_warps} stages {config.num_stages}",
                    kernel=self.function,
                    signature={name: f"*{ELEMENT_TYPES.get(name, x)}" for name in tensors},
                    constexprs=constants,
                    num_warps=config.num_warps,
                    num_stages=config.num_stages,
                    chosen=config == self.chosen(shape),
                    divisible_by_16=tensors,
                )

    def _constants(self, shape: Shape, config: Config) -> dict[str, Any]:
        """Value of each compile-time argument that the kernel has."""
        whole_k = max(TILE_TOKENS, triton.next_power_of_2(shape.K))
        whole_v = max(TILE_TOKENS, triton.next_power_of_2(shape.V))
        constants = {
            "H": shape.H,
            "K": shape.K,
            "V": shape.V,
            "DOT": shape.DOT,
            "WHOLE_K": whole_k,
            "BLOCK_K": min(config.block, whole_k),
            "BLOCK_V": min(config.block, whole_v),
        }
        return {name: constants[name] for name in self.function.arg_names if name in constants}


ELEMENT_TYPES = dict.fromkeys(
    [
        "beta_part",
        "correction_grads",
        "coupling",
        "cumulative",
        "final_grad",
        "final_state",
        "gate_part",
        "initial_grad",
        "initial_state",
        "k_part",
        "pool",
        "q_part",
        "tiles",
    ],
    "fp32",
) | dict.fromkeys(["chunks", "first_chunks", "slots"], "i64")
"""Types of the tensors, by the name of the argument, that are not of the inputs' type."""
AOT_SHAPES = (
    ("K=V=128 bf16", "bf16", Shape(H=96, K=128, V=128, DOT=tl.bfloat16)),
    ("K=V=32 fp32", "fp32", Shape(H=4, K=32, V=32, DOT=tl.float32)),
)
"""Label, type of the inputs and shape of the calls that `kernels.aot` compiles."""
