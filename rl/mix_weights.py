r"""How far the critic is trusted: the weights of advantages that look a different way ahead.

An advantage over a short window of turns has little noise, and is right only as far as the critic
sees within the window what a turn has done; lambda = 1 has all the noise and needs no trust. A mix
w A_short + (1 - w) A_long, both in units of their own size, takes w from what is measured. A_short
is the mean of several windows, likewise scaled: of 5 and of 50 turns, one is right where the other
is too long or too short (figures: rl/credit_bench/README.md).

The gate. On trajectories that the critic has not been fit on, over turns, with G the return-to-go,

    EV = 1 - var(G - V) / var(G)              EV_last: the same over last turns alone
    w = min(1, EV / EV_last / target)

A verifier's coin, or whatever else nobody can know, bounds EV; at the last turn the critic has
seen all there is to see, so EV over EV_last is the share of what can be known that it knows on
average over an episode: how early it knows. A critic that is right about every turn has one half
if the outcome is settled evenly over an episode: before the first turn nothing can be known,
before the last nearly all. So the target is 1/2. At EV <= 0 the critic is worse than a constant,
and the advantage does without it altogether. (Explained variance as the switch between critic and
mean: EVPO, arXiv 2604.19485.)
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from rl.baseline import returns_to_go
from rl.turn_grid import TurnGrid

ERRORS_DECAY = 0.8
"""Share that the errors of earlier steps keep: what they say is of about five."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Squared errors of a critic beside those of the mean return, added up over steps.

    Over several steps it is the sums that are compared: the mean of the steps' own explained
    variances would let a step whose outcomes hardly differ, where any error is many times the
    variance, outvote all others.
    """

    missed: float = 0.0
    """Sum of (G - V - mean(G - V))^2 over turns: what one number for the whole step would mend is a
    baseline's, and no fault of the critic."""
    spread: float = 0.0
    """Sum of (G - mean G)^2 over turns."""
    missed_last: float = 0.0
    """As `missed`, over last turns, each counted as often as the mean trajectory has turns."""
    spread_last: float = 0.0
    """As `spread`, likewise."""

    @classmethod
    def of(cls, grid: TurnGrid) -> "Errors":
        """Measure a critic on a step's trajectories.

        Only held-out ones say anything: on those it was fit on, a critic explains noise.

        Raises:
            ValueError: the grid has no values.
        """
        if grid.values is None:
            raise ValueError("explained variance needs a critic's values")
        to_go = returns_to_go(grid)
        trajectories = np.arange(len(grid.lengths)), grid.lengths - 1
        turns = float(grid.lengths.mean())
        return cls(
            missed=_squares((to_go - grid.values)[grid.mask]),
            spread=_squares(to_go[grid.mask]),
            missed_last=turns * _squares((to_go - grid.values)[trajectories]),
            spread_last=turns * _squares(to_go[trajectories]),
        )

    def __add__(self, other: "Errors") -> "Errors":
        return Errors(
            missed=self.missed + other.missed,
            spread=self.spread + other.spread,
            missed_last=self.missed_last + other.missed_last,
            spread_last=self.spread_last + other.spread_last,
        )

    def faded(self, share: float) -> "Errors":
        """Return what is left of them when they count a share of what they did."""
        return Errors(
            missed=share * self.missed,
            spread=share * self.spread,
            missed_last=share * self.missed_last,
            spread_last=share * self.spread_last,
        )

    @property
    def explained_variance(self) -> float | None:
        """At most 1; below 0 for a critic worse than the mean; None where all returns are equal."""
        return 1.0 - self.missed / self.spread if self.spread > 0 else None

    @property
    def foresight(self) -> float | None:
        """EV over EV_last, at most 1; EV where that is not above 0; None without an EV."""
        explained = self.explained_variance
        if explained is None or explained <= 0.0:
            return explained
        last = 1.0 - self.missed_last / self.spread_last if self.spread_last > 0 else 0.0
        return explained / max(explained, last)


def _squares(numbers: Float64[np.ndarray, " N"]) -> float:
    """Sum of squared distances from the mean; exactly 0 where all are equal."""
    return float(np.square(numbers - numbers.mean()).sum()) if np.ptp(numbers) > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Trusts a critic as far as it foresees outcomes that it has not trained on.

    Its terms are short windows, a long one, and one without a critic. They get the weights

        w in equal parts, 1 - w, 0   where EV > 0       0, 0, 1   where EV <= 0 or there is none yet

    so a critic that explains nothing is not used at all, and one that knows late is used as a
    baseline, which it cannot bias.

    Raises:
        ValueError: the target is not in (0, 1].
    """

    target: float = 0.5
    """Foresight from which on the short windows have all the weight."""

    def __post_init__(self) -> None:
        if not 0.0 < self.target <= 1.0:
            raise ValueError(f"target = {self.target} is not in (0, 1]")

    def weights(self, foresight: float | None, num_windows: int) -> tuple[float, ...]:
        """Return the weights of short windows, the long one, and the term without a critic."""
        if foresight is None or not foresight > 0.0:
            return (*[0.0] * num_windows, 0.0, 1.0)
        trust = min(1.0, foresight / self.target)
        return (*[trust / num_windows] * num_windows, 1.0 - trust, 0.0)
