"""What was measured on a GPU, as lines of a table: rates, the share of a ceiling, rivals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

TITLES = ("operation", "shape", "time", "rate", "of ceiling", "rivals: their time over ours")


class Unit(StrEnum):
    """What bounds an operation, and so what its rate counts."""

    FLOPS = "TFLOP/s"
    BYTES = "GB/s"


SCALE = {Unit.FLOPS: 1e12, Unit.BYTES: 1e9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """The best this device did in the same run, in units per second."""

    matmul: float
    """Operations of a large bfloat16 matrix product, FLOP/s."""
    copy: float
    """Bytes read and written by a large copy, bytes/s."""

    def of(self, unit: Unit) -> float:
        """Return the ceiling of a unit."""
        return self.matmul if unit is Unit.FLOPS else self.copy


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One operation, shape and direction."""

    op: str
    """Folder of the operation, and whether the backward pass is included."""
    shape: str
    """Sizes by their letters, and the dtype."""
    work: float
    """FLOP or bytes that the mathematics needs: what a perfect implementation would do."""
    unit: Unit
    """Unit of `work`."""
    seconds: float
    """Median time of ours; NaN if it did not run."""
    rivals: Mapping[str, float] = field(default_factory=dict)
    """Median time of others in the same run, by name."""
    remark: str = ""
    """Why something did not run."""


def format_table(rows: Sequence[Row], ceilings: Ceilings) -> str:
    """Lay rows out in columns, under a line that states the ceilings."""
    cells = [TITLES, *(_cells(row, ceilings) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(TITLES))]
    head = (
        f"ceilings of this run: {ceilings.matmul / SCALE[Unit.FLOPS]:.0f} {Unit.FLOPS} "
        f"(bfloat16 matrix product), {ceilings.copy / SCALE[Unit.BYTES]:.0f} {Unit.BYTES} (copy)"
    )
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
    return "\n".join([head, *lines])


def _cells(row: Row, ceilings: Ceilings) -> tuple[str, ...]:
    if row.seconds != row.seconds:  # NaN
        return row.op, row.shape, "-", "-", "-", row.remark
    rate = row.work / row.seconds
    rivals = ", ".join(f"{name} {value / row.seconds:.2f}" for name, value in row.rivals.items())
    return (
        row.op,
        row.shape,
        _duration(row.seconds),
        f"{rate / SCALE[row.unit]:.1f} {row.unit}",
        f"{rate / ceilings.of(row.unit):.0%}",
        "; ".join(filter(None, [rivals, row.remark])),
    )


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"
