"""How kernels that work row by row divide a matrix among the programs of a launch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernels.aot import AotCase

WARP = 32
"""Threads of a warp that tiles are sized for."""
MAX_WARPS = 16
"""Most warps of one program."""
SUMMING_PROGRAMS = 512
"""Programs among which a backward pass divides the rows whose contributions it sums.

Each leaves a partial sum; these are added in a fixed order, so no gradient depends on who was
first.
"""


@dataclass(frozen=True, slots=True)
class RowTile:
    """The part of a matrix that one program holds in registers.

    Kernels take it as their compile-time arguments BLOCK_ROWS and BLOCK_COLUMNS.
    """

    rows: int
    """Rows."""
    columns: int
    """Columns, a power of two; those beyond the matrix are masked."""
    num_warps: int
    """Warps of the program."""

    def __str__(self) -> str:
        return f"tile {self.rows}x{self.columns} warps {self.num_warps}"

    def launch(
        self,
        kernel: Any,  # noqa: ANN401  what `triton.jit` returns has no public type
        grid: tuple[int, ...],
        *arguments: object,
        **constants: object,
    ) -> None:
        """Run `kernel` with tiles of this size."""
        kernel[grid](
            *arguments,
            **constants,
            BLOCK_ROWS=self.rows,
            BLOCK_COLUMNS=self.columns,
            num_warps=self.num_warps,
            enable_fp_fusion=True,
        )

    def aot_case(
        self,
        kernel: Any,  # noqa: ANN401  what `triton.jit` returns has no public type
        label: str,
        signature: Mapping[str, str | tuple[str, ...]],
        *,
        chosen: bool,
        **constants: object,
    ) -> AotCase:
        """Describe the launch of `kernel` with tiles of this size.

        Args:
            kernel: The kernel.
            label: Shape and types, for the name of the case.
            signature: Types of the run-time arguments. Pointers, and integers whose name says that
                they are a width or a stride, are taken to be divisible by 16.
            chosen: Whether this is what a launch uses.
            **constants: Compile-time arguments besides the tile's.
        """
        return AotCase(
            name=f"{kernel.__name__} {label} {self}",
            kernel=kernel,
            signature=signature,
            constexprs={"BLOCK_ROWS": self.rows, "BLOCK_COLUMNS": self.columns, **constants},
            num_warps=self.num_warps,
            num_stages=1,
            chosen=chosen,
            divisible_by_16=[
                name
                for name, type_ in signature.items()
                if type_[0].startswith("*") or name.endswith(("width", "stride"))
            ],
        )


def tile_rows(width: int, elements: int, per_thread: int) -> RowTile:
    """Choose a tile of whole rows.

    Args:
        width: Columns of the matrix.
        elements: Elements that a tile should have; more if a single row is longer.
        per_thread: Elements that one thread should hold.
    """
    columns = next_power_of_two(width)
    rows = max(1, elements // columns)
    num_warps = max(1, min(MAX_WARPS, rows * columns // (WARP * per_thread)))
    return RowTile(rows, columns, num_warps)


def tile_columns(width: int, elements: int, widest: int, num_warps: int) -> RowTile:
    """Choose a tile that may end inside a row.

    Args:
        width: Columns of the matrix.
        elements: Elements that a tile should have.
        widest: Most columns of a tile.
        num_warps: Warps of a program.
    """
    columns = min(next_power_of_two(width), widest)
    return RowTile(max(1, elements // columns), columns, num_warps)


def divide_tiles(num_tiles: int, num_columns: int = 1) -> tuple[int, int]:
    """Divide the tiles of a column of tiles among programs that each sum over their share.

    Args:
        num_tiles: Tiles from the first row to the last.
        num_columns: Such columns beside each other in one launch.

    Returns:
        Programs per column, and tiles per program; the last one may find fewer.
    """
    share = -(-num_tiles // max(1, SUMMING_PROGRAMS // num_columns))
    return -(-num_tiles // share), share


def next_power_of_two(number: int) -> int:
    """Return the lowest power of two that is at least `number`, for a positive number."""
    return 1 << (number - 1).bit_length()
