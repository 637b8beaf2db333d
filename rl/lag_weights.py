r"""How far ahead to look, learned: a weight for every distance at which consequences show.

Gae gives the surprise delta_{h+k}, k turns after a turn, the weight lambda^k, whatever the task.
Here surprises are summed over bands of lags, b = [first, last] in turns,

    L_b,h = sum_{k in b} delta_{h+k}  =  V_{h+last+1} - V_{h+first}        sum_b L_b,h = G_h - V_h

so that with all weights 1 the bands add up to lambda = 1, which is unbiased whatever the critic.
Each band has a policy gradient g_b of its own. Band b deserves the weight with which it comes
closest to the unbiased gradient: of all w, E |w g_b - E g|^2 is least (Wiener 1949) at

    w_b = <E g_b, E g> / E |g_b|^2         in [0, 1]: signal over signal and noise

The numerator is measured without bias by the inner product m_b of g_b on one half of a batch with
the whole gradient on the other half, whose noise is independent; the denominator is the square of
g_b on the batch. Both are averaged over steps. The mean of m_b is still uncertain, by s_b as its
spread over steps tells, and a weight of chance is worse than none: w_b is shrunk by the factor
max(0, 1 - s_b^2 / m_b^2) (James & Stein 1961). So a band that holds only noise gets next to nothing
however quiet it is, and one where the critic recognises a decision late gets what is there. Nothing
is set by hand: neither lambda, nor how far the critic is to be trusted.

Gradients here are any linear image of them that keeps inner products, so a sketch (a random
projection of each turn's score) does, and costs no backward pass.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64

from rl.temporal import surprises
from rl.turn_grid import TurnGrid

FIRST_LAGS = (0, 1, 4, 16, 64, 256, 1024)
"""First lag of each band, turns: a band is as wide as what lies before it, three times over."""
MEMORY = 0.9
"""Share of the evidence that a step keeps: it averages over about ten steps."""

Gradient = Callable[[Float64[np.ndarray, "I H"], Bool[np.ndarray, " I"]], Float64[np.ndarray, " P"]]
"""From advantages and the trajectories that count to the policy gradient, or a sketch of it: the
sum over their turns of the advantage times the score, grad log pi(turn)."""


@dataclass(frozen=True, kw_only=True)
class LagEvidence:
    """What is known of each band after some steps: sums in which older steps count less."""

    agreement: Float64[np.ndarray, " N"]
    """Sum of m_b, whose expectation is <E g_b, E g>."""
    agreement_square: Float64[np.ndarray, " N"]
    """Sum of m_b^2."""
    energy: Float64[np.ndarray, " N"]
    """Sum of |g_b|^2."""
    count: float = 0.0
    """Sum of the steps' own weights."""
    count_square: float = 0.0
    """Sum of the squares of the steps' own weights: count^2 / count_square steps are averaged."""

    def updated(
        self, first: Float64[np.ndarray, "N P"], second: Float64[np.ndarray, "N P"]
    ) -> "LagEvidence":
        """Take in a step: the gradient of each band on two halves of its trajectories."""
        crossed = first @ second.sum(axis=0) + second @ first.sum(axis=0)
        agreement = 2 * crossed  # two of the four products of halves
        return LagEvidence(
            agreement=MEMORY * self.agreement + agreement,
            agreement_square=MEMORY * self.agreement_square + agreement**2,
            energy=MEMORY * self.energy + np.square(first + second).sum(axis=1),
            count=MEMORY * self.count + 1.0,
            count_square=MEMORY**2 * self.count_square + 1.0,
        )

    def weights(self) -> Float64[np.ndarray, " N"]:
        """Return the weight of each band, in [0, 1]; all 1 (lambda = 1) if none is known to agree.

        One step does not tell how uncertain it is, so that this is also the case after the first.
        """
        everything = np.ones(len(FIRST_LAGS))
        steps = self.count**2 / self.count_square if self.count else 0.0
        if steps <= 1.0:
            return everything
        mean = self.agreement / self.count
        spread = np.maximum(0.0, self.agreement_square / self.count - mean**2) / (steps - 1)
        certain = np.clip(1.0 - _over(spread, mean**2), 0.0, 1.0)
        weights = np.clip(certain * _over(self.agreement, self.energy), 0.0, 1.0)
        return weights if weights.any() else everything


def no_evidence() -> LagEvidence:
    """Return what is known before the first step."""
    nothing = np.zeros(len(FIRST_LAGS))
    return LagEvidence(agreement=nothing, agreement_square=nothing, energy=nothing)


def lag_weighted(
    grid: TurnGrid, baseline: Float64[np.ndarray, "I H"], gradient: Gradient, evidence: LagEvidence
) -> tuple[Float64[np.ndarray, "I H"], LagEvidence]:
    """Compute advantages with every band of lags weighted by what it has been worth.

    Args:
        grid: The turns. Its groups are split into two halves.
        baseline: Value before each turn.
        gradient: The policy gradient of given advantages on given trajectories.
        evidence: What is known from earlier steps.

    Returns:
        Advantages, and what is known now, this step included.

    Raises:
        ValueError: there is one group only.
    """
    numbers = np.unique(grid.groups)
    if len(numbers) < 2:
        raise ValueError("weights of lags need at least two groups: one half measures the other")
    in_first = np.isin(grid.groups, numbers[::2])
    bands = lag_bands(grid, baseline)
    halves = [np.stack([gradient(band, rows) for band in bands]) for rows in (in_first, ~in_first)]
    evidence = evidence.updated(*halves)
    return np.tensordot(evidence.weights(), bands, axes=1), evidence


def lag_bands(grid: TurnGrid, baseline: Float64[np.ndarray, "I H"]) -> Float64[np.ndarray, "N I H"]:
    """Sum the surprises after each turn over each band of lags; undiscounted."""
    deltas = surprises(grid, baseline)
    count, most = deltas.shape
    to_come = np.zeros((count, most + 1))
    to_come[:, :-1] = np.cumsum(deltas[:, ::-1], axis=1)[:, ::-1]
    turns = np.arange(most)
    starts = [to_come[:, np.minimum(turns + lag, most)] for lag in FIRST_LAGS]
    bands = np.stack(starts)
    bands[:-1] -= np.stack(starts[1:])
    return np.where(grid.mask, bands, 0.0)


def _over(
    numbers: Float64[np.ndarray, " N"], divisors: Float64[np.ndarray, " N"]
) -> Float64[np.ndarray, " N"]:
    """Divide; 0 where the divisor is 0."""
    return np.divide(numbers, divisors, out=np.zeros_like(numbers), where=divisors > 0)
