r"""Scales: the size that advantages are brought to. None of them moves the mean.

Takes advantages [I, H] of a grid and what is known of earlier steps, returns the scaled advantages
and what is known now.

    none        A
    group_std   A / std of the siblings' returns        (arXiv 2402.03300; unbiased std, plus 1e-6)
    batch_std   A / std of A over the turns of the batch                (arXiv 2501.03262)
    ema_rms     A / sqrt(running mean of A^2 over turns)

`group_std` weights a task by how hard it is: most where nearly all siblings fail or nearly all
succeed. `batch_std` takes away that advantages fade as a task is solved. `ema_rms` changes the unit
slowly and is the only one whose noise does not grow in a small batch.

Means are over turns, not tokens, or a turn of many tokens would set the unit for all others. And
nothing is centred: the mean advantage under a critic says how wrong the critic is, which is worth
a metric, and a shift turns the sign of advantages near 0. Where a spread is 0 or not known (a
trajectory alone in its group), advantages stay as they are.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from rl.turn_grid import TurnGrid

EPSILON = 1e-6
"""Added to a standard deviation, as in verl; TRL adds 1e-4."""
EMA_DECAY = 0.9
"""Share of the running mean square that a step keeps: it averages over about ten steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSquare:
    """Exponential mean of the squared advantage over earlier steps."""

    weighted_sum: float = 0.0
    weight: float = 0.0
    """Sum of the weights: below 1 at the start, which is divided out."""

    def updated(self, mean_square: float) -> "RunningSquare":
        """Take in one step's mean square."""
        return RunningSquare(
            weighted_sum=EMA_DECAY * self.weighted_sum + (1 - EMA_DECAY) * mean_square,
            weight=EMA_DECAY * self.weight + (1 - EMA_DECAY),
        )

    @property
    def root(self) -> float:
        """Root of the mean square; 0 before the first step."""
        return math.sqrt(self.weighted_sum / self.weight) if self.weight else 0.0


Scale = Callable[
    [TurnGrid, Float64[np.ndarray, "I H"], RunningSquare],
    tuple[Float64[np.ndarray, "I H"], RunningSquare],
]


def none(
    _grid: TurnGrid, advantages: Float64[np.ndarray, "I H"], running: RunningSquare
) -> tuple[Float64[np.ndarray, "I H"], RunningSquare]:
    """Leave advantages as they are."""
    return advantages, running


def group_std(
    grid: TurnGrid, advantages: Float64[np.ndarray, "I H"], running: RunningSquare
) -> tuple[Float64[np.ndarray, "I H"], RunningSquare]:
    """Divide by the standard deviation of the siblings' returns."""
    divisors = np.ones(len(advantages))
    for group in np.unique(grid.groups):
        members = grid.groups == group
        if members.sum() > 1:
            spread = float(grid.returns[members].std(ddof=1))
            divisors[members] = _divisor(spread)
    return advantages / divisors[:, None], running


def batch_std(
    grid: TurnGrid, advantages: Float64[np.ndarray, "I H"], running: RunningSquare
) -> tuple[Float64[np.ndarray, "I H"], RunningSquare]:
    """Divide by the standard deviation of the advantages over all turns."""
    return advantages / _divisor(float(advantages[grid.mask].std())), running


def ema_rms(
    grid: TurnGrid, advantages: Float64[np.ndarray, "I H"], running: RunningSquare
) -> tuple[Float64[np.ndarray, "I H"], RunningSquare]:
    """Divide by the running root mean square over turns, this step's turns included."""
    running = running.updated(float(np.square(advantages[grid.mask]).mean()))
    return (advantages / running.root if running.root > 0 else advantages), running


SCALES: dict[str, Scale] = {
    "none": none,
    "group_std": group_std,
    "batch_std": batch_std,
    "ema_rms": ema_rms,
}
"""By the name that a configuration uses."""


def _divisor(spread: float) -> float:
    """Return what a spread divides by; rounding that is left of equal numbers is no spread."""
    return spread + EPSILON if spread > EPSILON * EPSILON else 1.0
