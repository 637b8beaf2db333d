r"""How good a critic is, measured on trajectories that it has not trained on.

Takes a grid with the critic's values before each turn; with V_h those values and G_h what came
after,

    explained variance    1 - var(G - V) / var(G)              (rl/mix_weights.py)
    calibration           mean over turns of |mean V - mean G| of the turn's tenth of values:
                          0 where half of the turns with value 1/2 end well
    recognition           share of an episode after which less than half of the critic's first
                          surprise G - V_1 is left for good: 0 knew it soon, 1 never knew. The delay
                          that a window of lambda must span is a part of it.
"""

from dataclasses import dataclass

import numpy as np

from rl.baseline import returns_to_go
from rl.turn_grid import TurnGrid

NUM_BINS = 10
"""Of calibration, between the smallest and the largest value."""
LEAST_SURPRISE = 0.1
"""An episode that surprises less at its start says nothing of when the critic knew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticStatistics:
    """What a step's trajectories say of a critic that has not trained on them."""

    explained_variance: float | None
    """None where all outcomes are equal."""
    calibration: float
    recognition: float | None
    """None where no episode surprises."""
    loss: float
    """Mean of the last critic step over its turns: nats under bce, squares under mse."""


def measure_calibration(grid: TurnGrid) -> float:
    """Return the mean distance between values and outcomes of turns with like values."""
    assert grid.values is not None
    values, to_go = grid.values[grid.mask], returns_to_go(grid)[grid.mask]
    width = np.ptp(values) / NUM_BINS
    bins = np.zeros(len(values), dtype=np.int64)
    if width > 0:
        bins = np.minimum(NUM_BINS - 1, ((values - values.min()) / width).astype(np.int64))
    distances = np.abs(np.bincount(bins, values) - np.bincount(bins, to_go))
    return float(distances.sum() / len(values))


def measure_recognition(grid: TurnGrid) -> float | None:
    """Return the mean share of an episode after which the critic knows how it ends."""
    assert grid.values is not None
    surprise = np.abs(np.where(grid.mask, returns_to_go(grid) - grid.values, 0.0))
    first = surprise[:, :1]
    speaks = first[:, 0] > LEAST_SURPRISE
    if not speaks.any():
        return None
    is_ignorant = surprise > 0.5 * first
    turns = np.arange(1, surprise.shape[1] + 1)
    last_ignorant = np.where(is_ignorant, turns, 0).max(axis=1)
    return float((last_ignorant / grid.lengths)[speaks].mean())
