r"""Advantages: a weighted sum of terms, each a baseline, a temporal rule and a scale.

Takes a grid of turns, returns an advantage for each turn. A term is

    scale( temporal(grid, baseline(grid), lambda, gamma) )

and GRPO is one of them, GiGPO two. Terms whose worth depends on the critic have their weights set
by a gate, from how early the critic knew the outcomes of trajectories that it had not trained on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64

from rl.baseline import BASELINES
from rl.mix_weights import Gate
from rl.scale import SCALES, RunningSquare
from rl.temporal import TEMPORAL_RULES, Lambda, LengthAdaptive
from rl.turn_grid import TurnGrid

SIBLING_BASELINES = ("rloo", "group_mean", "state_group")
"""Baselines that compare siblings: a group of one gives them advantage 0."""
ROW_BASELINES = ("none", "rloo", "group_mean", "batch_mean")
"""Baselines that are constant along a trajectory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One way to credit turns.

    Raises:
        ValueError: a name is not known, a number is out of bounds, or the pieces do not fit.
    """

    baseline: str
    temporal: str = "outcome"
    lam: Lambda = 1.0
    """Only `gae` looks at it."""
    gamma: float = 1.0
    """Discount per turn; `outcome` does not look at it."""
    scale: str = "none"
    weight: float = 1.0

    def __post_init__(self) -> None:
        _require_known("baseline", self.baseline, BASELINES)
        _require_known("temporal", self.temporal, TEMPORAL_RULES)
        _require_known("scale", self.scale, SCALES)
        if not 0.0 <= self.gamma <= 1.0:
            raise ValueError(f"gamma = {self.gamma} is not in [0, 1]")
        if not isinstance(self.lam, LengthAdaptive) and not 0.0 <= self.lam <= 1.0:
            raise ValueError(f"lambda = {self.lam} is not in [0, 1]")
        if self.temporal == "gae" and self.baseline in ROW_BASELINES and self.lam != 1.0:
            raise ValueError(
                f"gae with lambda below 1 over the baseline {self.baseline}, which is the same "
                "before every turn, hides the outcome from all but the last turns: use "
                "reward_to_go, or a baseline that follows the state (critic, state_group)"
            )

    @property
    def needs_critic(self) -> bool:
        """Whether the grid must have a critic's values."""
        return self.baseline == "critic"

    @property
    def needs_siblings(self) -> bool:
        """Whether a trajectory alone in its group gets advantage 0."""
        return self.baseline in SIBLING_BASELINES

    def advantages(
        self, grid: TurnGrid, running: RunningSquare
    ) -> tuple[Float64[np.ndarray, "I H"], RunningSquare]:
        """Compute the term's scaled advantages, without its weight.

        Args:
            grid: The turns.
            running: What the scale knows of earlier steps.

        Returns:
            Advantages, 0 behind a trajectory's last turn, and what the scale knows now.

        Raises:
            ValueError: the grid lacks the values or the states that the baseline needs.
        """
        baseline = BASELINES[self.baseline](grid, self.gamma)
        raw = TEMPORAL_RULES[self.temporal](grid, baseline, self.lam, self.gamma)
        return SCALES[self.scale](grid, raw, running)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A sum of terms, whose weights a gate may set.

    Raises:
        ValueError: no term, or a gate over fewer than three.
    """

    terms: tuple[Term, ...]
    gate: Gate | None = None

    def __post_init__(self) -> None:
        if not self.terms:
            raise ValueError("an advantage needs at least one term")
        if self.gate is not None and len(self.terms) < 3:
            raise ValueError(f"a gate weighs at least three terms, not {len(self.terms)}")

    def terms_at(self, foresight: float | None) -> tuple[Term, ...]:
        """Return the terms with the weights that they have at a critic's foresight (`Errors`)."""
        if self.gate is None:
            return self.terms
        weights = self.gate.weights(foresight, len(self.terms) - 2)
        return tuple(
            replace(term, weight=weight * term.weight)
            for term, weight in zip(self.terms, weights, strict=True)
        )

    @property
    def needs_critic(self) -> bool:
        """Whether a critic must be trained."""
        return any(term.needs_critic for term in self.terms)

    @property
    def needs_siblings(self) -> bool:
        """Whether groups of one would leave a term without anything to compare."""
        return any(term.needs_siblings for term in self.terms)


def combine(
    grid: TurnGrid, terms: Sequence[Term], running: Sequence[RunningSquare] = ()
) -> tuple[Float64[np.ndarray, "I H"], tuple[RunningSquare, ...]]:
    """Add up terms, each by its weight; a term of weight 0 is not computed.

    Args:
        grid: The turns.
        terms: What is added.
        running: What the scale of each term knows of earlier steps; empty before the first.

    Returns:
        Advantages, and what the scale of each term knows now.

    Raises:
        ValueError: the grid lacks the values or the states that a baseline needs.
    """
    known = list(running) or [RunningSquare()] * len(terms)
    total = np.zeros_like(grid.rewards)
    for place, term in enumerate(terms):
        if term.weight != 0.0:
            scaled, known[place] = term.advantages(grid, known[place])
            total += term.weight * scaled
    return total, tuple(known)


def _require_known(kind: str, name: str, known: Sequence[str] | dict) -> None:
    if name not in known:
        raise ValueError(f"{kind} = {name!r}: there are {', '.join(known)}")
