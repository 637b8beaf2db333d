"""The cells of the benchmark: what is measured, in processes side by side, and kept.

A cell is one environment at one horizon: all estimators compared with the truth, or one estimator's
policies learning. A finished cell is a file and is not computed again. Files lie in a folder named
after the code that made them, so that figures of older code are never mixed in.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

from rl.credit_bench.comparison import compare
from rl.credit_bench.environments import build_environment
from rl.credit_bench.estimators import DEFAULT_ESTIMATORS, ESTIMATORS, Estimator
from rl.credit_bench.exact import evaluate, uniform_policy
from rl.credit_bench.laws import correlation_law
from rl.credit_bench.learning import LEARNING_CRITICS, learn

HORIZONS = (10, 30, 100, 300, 1000)
BATCHES = 10
"""Independent repetitions of a comparison."""
SEEDS = 11
"""Policies that learn at each step length."""
DEFAULT_ENVIRONMENTS = ("KeyDoor", "Ladder", "DelayedReveal")
FURTHER_ENVIRONMENTS = (
    "DelayedReveal(5)",
    "DelayedReveal(60)",
    "DelayedReveal(1000)",
    "Recover",
    "AliasMaze",
    "VarLen",
    "VarLen(-0.5)",
    "Compact",
    "Stale",
)
_CODE = (
    "turn_grid.py",
    "baseline.py",
    "temporal.py",
    "scale.py",
    "mix_weights.py",
    "lag_weights.py",
    "advantage.py",
    "presets.py",
    "credit_bench/comparison.py",
    "credit_bench/critics.py",
    "credit_bench/environments.py",
    "credit_bench/estimators.py",
    "credit_bench/exact.py",
    "credit_bench/layered_process.py",
    "credit_bench/learning.py",
    "credit_bench/measures.py",
)
"""What figures depend on, relative to this package's parent."""

_log = logging.getLogger(__name__)

Figures = dict[str, dict[str, float | None]]
"""Measures by estimator: what a cell finds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One environment at one horizon, and what is measured there."""

    environment: str
    horizon: int
    estimators: tuple[str, ...]
    is_learning: bool
    """Policies learn with one estimator; else all estimators are compared with the truth."""
    repetitions: int
    """Batches of a comparison, seeds of learning."""

    @property
    def file_name(self) -> str:
        """Name of the file that holds the cell's figures."""
        what = hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:8]
        kind = f"learn-{self.estimators[0].replace('/', '-')}" if self.is_learning else "compare"
        return f"{self.environment}-{self.horizon}-{kind}-{what}.json"

    @property
    def cost(self) -> int:
        """How long it takes next to others, roughly."""
        return self.horizon * (3 if self.is_learning else len(self.estimators))


def default_cells() -> list[Cell]:
    """List the cells of the default grid."""
    return _cells(DEFAULT_ENVIRONMENTS, DEFAULT_ESTIMATORS)


def full_cells() -> list[Cell]:
    """List the cells of every environment and every estimator."""
    return _cells((*DEFAULT_ENVIRONMENTS, *FURTHER_ENVIRONMENTS), tuple(ESTIMATORS.values()))


def _cells(environments: Sequence[str], estimators: Sequence[Estimator]) -> list[Cell]:
    cells = [
        Cell(
            environment=environment,
            horizon=horizon,
            estimators=tuple(estimator.name for estimator in estimators),
            is_learning=False,
            repetitions=BATCHES,
        )
        for environment in environments
        for horizon in HORIZONS
    ]
    cells += [
        Cell(
            environment=environment,
            horizon=horizon,
            estimators=(estimator.name,),
            is_learning=True,
            repetitions=SEEDS,
        )
        for environment in environments
        for horizon in HORIZONS
        for estimator in estimators
        if estimator.critic in LEARNING_CRITICS
    ]
    return cells


def measure_cell(cell: Cell) -> Figures:
    """Compute the figures of a cell."""
    process = build_environment(cell.environment, cell.horizon)
    estimators = [ESTIMATORS[name] for name in cell.estimators]
    if cell.is_learning:
        result = learn(process, estimators[0], cell.repetitions, seed=0)
        return {cell.estimators[0]: {"trajectories_to_90": result.trajectories_to_90}}
    truth = evaluate(process, uniform_policy(process))
    figures: Figures = {}
    for name, measures in compare(process, estimators, cell.repetitions, seed=0).items():
        law = correlation_law(truth, ESTIMATORS[name])
        figures[name] = asdict(measures) | ({} if law is None else {"corr_law": law})
    return figures


def measure_cells(cells: Sequence[Cell], folder: Path, workers: int) -> dict[Cell, Figures]:
    """Compute the cells that are not there yet, and return all.

    Args:
        cells: What is wanted.
        folder: Where finished cells are kept, in a folder for each version of the code.
        workers: Processes.
    """
    kept = folder / fingerprint()
    kept.mkdir(parents=True, exist_ok=True)
    missing = [cell for cell in cells if not (kept / cell.file_name).exists()]
    missing.sort(key=lambda cell: -cell.cost)
    for done, cell in enumerate(_compute(missing, kept, workers), start=1):
        _log.info("%d of %d: %s", done, len(missing), cell.file_name)
    return {cell: json.loads((kept / cell.file_name).read_text()) for cell in cells}


def fingerprint() -> str:
    """Name the version of the code that figures depend on."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for name in _CODE:
        digest.update((root / name).read_bytes())
    return digest.hexdigest()[:12]


def _compute(cells: Sequence[Cell], kept: Path, workers: int) -> Iterator[Cell]:
    """Compute and store cells, and name each as it is finished."""
    if workers == 1 or len(cells) < 2:
        for cell in cells:
            _measure_and_keep(cell, kept)
            yield cell
        return
    # Arrays are small: threads inside of a process would only fight over the cores.
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        futures = {pool.submit(_measure_and_keep, cell, kept): cell for cell in cells}
        for future in as_completed(futures):
            future.result()
            yield futures[future]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _measure_and_keep(cell: Cell, kept: Path) -> None:
    figures = measure_cell(cell)
    part = kept / f"{cell.file_name}.{os.getpid()}.part"
    part.write_text(json.dumps(figures))
    part.replace(kept / cell.file_name)
