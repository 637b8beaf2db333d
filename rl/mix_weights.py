r"""How far the critic is trusted: the weights of advantages that look a different way ahead.

An advantage over a short window of turns has little noise, and is right only as far as the critic
sees within the window what a turn has done; lambda = 1 has all the noise and needs no trust. A mix
w A_short + (1 - w) A_long, both in units of their own size, takes w from what is measured.

The gate. On trajectories that the critic has not been fit on, over turns, with G the return-to-go,

    EV = 1 - sum (G_h - V_h)^2 / sum (G_h - mean G)^2          w = min(1, EV / target)

A critic that is right about every turn explains one half if the outcome is settled evenly over an
episode: before the first turn nothing can be known, before the last nearly all. So the target is
1/2. At EV <= 0 the critic is worse than a constant, and the advantage does without it altogether.
(Explained variance as the switch between critic and mean: EVPO, arXiv 2604.19485.)
"""

from dataclasses import dataclass

import numpy as np

from rl.baseline import returns_to_go
from rl.turn_grid import TurnGrid


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Squared errors of a critic beside those of the mean return, added up over steps.

    Over several steps it is the sums that are compared: the mean of the steps' own explained
    variances would let a step whose outcomes hardly differ, where any error is many times the
    variance, outvote all others.
    """

    missed: float = 0.0
    """Sum of (G - V)^2 over turns."""
    spread: float = 0.0
    """Sum of (G - mean G)^2 over turns."""

    @classmethod
    def of(cls, grid: TurnGrid) -> "Errors":
        """Measure a critic on a step's trajectories.

        Only held-out ones say anything: on those it was fit on, a critic explains noise.

        Raises:
            ValueError: the grid has no values.
        """
        if grid.values is None:
            raise ValueError("explained variance needs a critic's values")
        to_go = returns_to_go(grid)[grid.mask]
        return cls(
            missed=float(np.square(to_go - grid.values[grid.mask]).sum()),
            spread=float(np.square(to_go - to_go.mean()).sum()) if np.ptp(to_go) > 0 else 0.0,
        )

    def __add__(self, other: "Errors") -> "Errors":
        return Errors(missed=self.missed + other.missed, spread=self.spread + other.spread)

    def faded(self, share: float) -> "Errors":
        """Return what is left of them when they count a share of what they did."""
        return Errors(missed=share * self.missed, spread=share * self.spread)

    @property
    def explained_variance(self) -> float | None:
        """At most 1; below 0 for a critic worse than the mean; None where all returns are equal."""
        return 1.0 - self.missed / self.spread if self.spread > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Trusts a critic as far as it explains outcomes that it has not trained on.

    Three terms (short window, long window, without critic) get the weights

        (w, 1 - w, 0)  where EV > 0          (0, 0, 1)  where EV <= 0 or there is no EV yet

    so a critic that explains nothing is not used at all, and one that explains little is used as a
    baseline, which it cannot bias.

    Raises:
        ValueError: the target is not in (0, 1].
    """

    target: float = 0.5
    """EV from which on the short window has all the weight."""

    def __post_init__(self) -> None:
        if not 0.0 < self.target <= 1.0:
            raise ValueError(f"target = {self.target} is not in (0, 1]")

    def weights(self, explained: float | None) -> tuple[float, float, float]:
        """Return the weights of the three terms at a held-out explained variance."""
        if explained is None or not explained > 0.0:
            return (0.0, 0.0, 1.0)
        trust = min(1.0, explained / self.target)
        return (trust, 1.0 - trust, 0.0)
