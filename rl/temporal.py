r"""Temporal rules: how what came after a turn, near and far, becomes the turn's advantage.

Takes a grid and a baseline b [I, H], returns advantages [I, H], zero behind a trajectory's last
turn. Time is counted in turns, and b behind the last turn is the grid's `final_values`:

    outcome        A_h = R - b_h                      the return, whenever it came
    reward_to_go   A_h = G_h - b_h                    what came after the turn
    gae            A_h = sum_{k>=h} (gamma lambda)^{k-h} delta_k
                   delta_h = r_h + gamma b_{h+1} - b_h                     (arXiv 1506.02438)

`gae` with lambda = 1 and gamma = 1 is reward_to_go; with lambda = 0 it believes the next turn's
baseline altogether. Between them a turn sees about 1/(1 - lambda) turns ahead: over H turns with
one outcome, rules that see all of them have a correlation with the true advantage that falls as
1/sqrt(H), and a bounded window does not (it pays with the baseline's errors).

Observations take no time and neither do the tokens of a turn, so lambda per turn here is what is
published as turn-boundary GAE (arXiv 2610.22192). A length-adaptive lambda (VAPO, arXiv 2504.05118;
SAO, arXiv 2607.07508) counts turns too, where its sources count tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from rl.baseline import returns_to_go
from rl.turn_grid import TurnGrid


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthAdaptive:
    """lambda = 1 - 1/(alpha n) in a trajectory of n turns, at least 0: a window of alpha n turns.

    Raises:
        ValueError: alpha is not positive.
    """

    alpha: float

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise ValueError(f"alpha = {self.alpha}: must be above 0")


Lambda = float | LengthAdaptive
"""Share of a later surprise that reaches the turn before it."""
Temporal = Callable[
    [TurnGrid, Float64[np.ndarray, "I H"], Lambda, float], Float64[np.ndarray, "I H"]
]
"""From a grid, a baseline, lambda and the discount gamma per turn; only `gae` looks at lambda."""


def outcome(
    grid: TurnGrid,
    baseline: Float64[np.ndarray, "I H"],
    _lam: Lambda = 1.0,
    _gamma: float = 1.0,
) -> Float64[np.ndarray, "I H"]:
    """Give every turn the whole return, undiscounted, minus its baseline."""
    return np.where(grid.mask, grid.returns[:, None] - baseline, 0.0)


def reward_to_go(
    grid: TurnGrid,
    baseline: Float64[np.ndarray, "I H"],
    _lam: Lambda = 1.0,
    gamma: float = 1.0,
) -> Float64[np.ndarray, "I H"]:
    """Give every turn what came after it, minus its baseline."""
    return np.where(grid.mask, returns_to_go(grid, gamma) - baseline, 0.0)


def gae(
    grid: TurnGrid,
    baseline: Float64[np.ndarray, "I H"],
    lam: Lambda = 1.0,
    gamma: float = 1.0,
) -> Float64[np.ndarray, "I H"]:
    """Give every turn the surprises after it, each worth less the later it came.

    Args:
        grid: The turns.
        baseline: Value before each turn, [I, H].
        lam: lambda per turn, or its rule.
        gamma: Discount per turn.
    """
    decay = gamma * lambda_of_trajectory(grid, lam)
    deltas = surprises(grid, baseline, gamma)
    advantages = np.zeros_like(deltas)
    after = np.zeros(len(deltas))
    for turn in reversed(range(deltas.shape[1])):
        after = deltas[:, turn] + decay * after
        advantages[:, turn] = after
    return advantages


TEMPORAL_RULES: dict[str, Temporal] = {
    "outcome": outcome,
    "reward_to_go": reward_to_go,
    "gae": gae,
}
"""By the name that a configuration uses."""


def surprises(
    grid: TurnGrid, baseline: Float64[np.ndarray, "I H"], gamma: float = 1.0
) -> Float64[np.ndarray, "I H"]:
    """Compute delta_h = r_h + gamma b_{h+1} - b_h, 0 off the mask."""
    following = np.zeros_like(baseline)
    following[:, :-1] = baseline[:, 1:]
    following[np.arange(len(baseline)), grid.lengths - 1] = grid.final_values
    return np.where(grid.mask, grid.rewards + gamma * following - baseline, 0.0)


def lambda_of_trajectory(grid: TurnGrid, lam: Lambda) -> Float64[np.ndarray, " I"]:
    """Return lambda per turn of each trajectory."""
    if isinstance(lam, LengthAdaptive):
        return np.maximum(0.0, 1.0 - 1.0 / (lam.alpha * grid.lengths))
    return np.full(len(grid.lengths), float(lam))
