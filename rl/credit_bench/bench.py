"""`limosa bench credit`: measure, report, draw."""

import os
from dataclasses import dataclass
from pathlib import Path

from rich.console import RenderableType

from rl.credit_bench.cells import default_cells, full_cells, measure_cells
from rl.credit_bench.plot import draw
from rl.credit_bench.report import curves_of, render, to_json

PLOT = "curves.svg"


@dataclass(frozen=True, kw_only=True)
class CreditBench:
    """What the benchmark found."""

    values: dict[str, dict[str, dict[str, object]]]
    """By environment, estimator and measure."""
    text: RenderableType
    """The same as tables."""
    plot: Path
    """Every measure against the horizon."""


def bench_credit(folder: Path, is_full: bool = False) -> CreditBench:
    """Compare estimators with the truth, on all cores.

    Args:
        folder: Where finished cells and the plot are kept; what is there is not computed again.
        is_full: Every environment and estimator, instead of the default grid.
    """
    cells = full_cells() if is_full else default_cells()
    curves = curves_of(measure_cells(cells, folder, os.cpu_count() or 1))
    plot = folder / PLOT
    plot.write_text(draw(curves))
    return CreditBench(values=to_json(curves), text=render(curves), plot=plot)
