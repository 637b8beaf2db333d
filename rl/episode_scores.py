"""Scores of finished episodes: pass rates and means per environment, Invalid ones left out.

Takes trajectories, each with the name of its environment in the configuration; used for the groups
of a step and for an evaluation alike.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from rollout.trajectory import Trajectory

FULL_SCORE = 1.0
"""An episode passes with this score and no less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Scores of some episodes, by environment."""

    scores: Mapping[str, Sequence[float]]
    """Every score that was given; an environment without any is there, with none."""
    invalid: Mapping[str, int]
    """Episodes without a score, by reason, over all environments."""

    @classmethod
    def of(cls, attempts: Sequence[tuple[str, Trajectory]]) -> Self:
        """Read the outcomes of attempts: environment and trajectory."""
        scores: dict[str, list[float]] = {name: [] for name, _ in attempts}
        for name, trajectory in attempts:
            if trajectory.reward is not None:
                scores[name].append(trajectory.reward)
        invalid = Counter(t.invalid.reason for _, t in attempts if t.invalid is not None)
        return cls(scores=scores, invalid=invalid)

    @property
    def pass_rate(self) -> dict[str, float]:
        """Share of the scored episodes with full score; nan where none is scored."""
        return {
            name: _mean([float(score >= FULL_SCORE) for score in given])
            for name, given in self.scores.items()
        }

    @property
    def standard_error(self) -> dict[str, float]:
        """Binomial standard error of `pass_rate`."""
        return {
            name: math.sqrt(rate * (1 - rate) / max(1, len(self.scores[name])))
            for name, rate in self.pass_rate.items()
        }

    @property
    def mean(self) -> dict[str, float]:
        """Mean score; nan where none is scored."""
        return {name: _mean(given) for name, given in self.scores.items()}

    @property
    def overall_mean(self) -> float:
        """Mean score over the episodes of all environments; nan where none is scored."""
        return _mean([score for given in self.scores.values() for score in given])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
