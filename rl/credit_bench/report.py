"""The figures of the benchmark for programs and for people."""

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rl.credit_bench.cells import Cell, Figures
from rl.credit_bench.laws import slope_in_log_horizon
from rl.credit_bench.measures import MEASURES

ByHorizon = dict[int, float | None]
LEARNED = "trajectories_to_90"
COLUMNS = (*MEASURES, LEARNED)
"""What a table shows of an estimator at a horizon."""

Curves = dict[str, dict[str, dict[str, ByHorizon]]]
"""By environment, estimator and measure: figures by horizon."""


def curves_of(results: Mapping[Cell, Figures]) -> Curves:
    """Sort the figures of cells into one curve over H for each measure."""
    curves: Curves = {}
    for cell in sorted(results, key=lambda cell: cell.horizon):
        for estimator, figures in results[cell].items():
            by_measure = curves.setdefault(cell.environment, {}).setdefault(estimator, {})
            for measure, figure in figures.items():
                by_measure.setdefault(measure, {})[cell.horizon] = figure
    return curves


def to_json(curves: Curves) -> dict[str, dict[str, dict[str, object]]]:
    """Return `{environment: {estimator: {measure: {H: x}, "slope_log_h": x}}}`.

    `slope_log_h` is the slope of log corr in log H over H >= 100, `slope_law` that of the closed
    form where there is one.
    """
    return {
        environment: {
            estimator: {**by_measure, **_slopes(by_measure)}
            for estimator, by_measure in estimators.items()
        }
        for environment, estimators in curves.items()
    }


def render(curves: Curves) -> RenderableType:
    """Lay out a table for each environment."""
    return Group(*(_table(environment, curves[environment]) for environment in curves))


def _slopes(by_measure: Mapping[str, ByHorizon]) -> dict[str, float | None]:
    slopes = {"slope_log_h": _slope(by_measure.get("corr", {}))}
    if "corr_law" in by_measure:
        slopes["slope_law"] = _slope(by_measure["corr_law"])
    return slopes


def _slope(by_horizon: ByHorizon) -> float | None:
    known = {horizon: value for horizon, value in by_horizon.items() if value is not None}
    return slope_in_log_horizon(known)


def _table(environment: str, estimators: Mapping[str, Mapping[str, ByHorizon]]) -> RenderableType:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(Text(environment))
    for title in ("H", *COLUMNS, "slope", "law"):
        table.add_column(title, justify="right")
    for estimator, by_measure in estimators.items():
        slopes = _slopes(by_measure)
        horizons = sorted({horizon for curve in by_measure.values() for horizon in curve})
        for place, horizon in enumerate(horizons):
            shown = [_show(by_measure.get(column, {}).get(horizon)) for column in COLUMNS]
            last = [_show(slopes.get(name)) for name in ("slope_log_h", "slope_law")]
            table.add_row(
                *(Text(estimator), str(horizon)) if place == 0 else ("", str(horizon)),
                *shown,
                *(last if place == 0 else ("", "")),
            )
    return table


def _show(figure: float | None) -> str:
    if figure is None:
        return "-"
    return f"{figure:.3f}" if abs(figure) < 10 else f"{figure:.0f}"
