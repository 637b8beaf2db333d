"""A rubric: several graders as one, their scores added by weight.

Worked example, in the module that a task's `grader` names:

    grade = Rubric({"answer": (3.0, grade_answer), "citation": (1.0, grade_citation)})
"""

import math
from collections.abc import Mapping

from envs.episode import Episode
from rewards.reward import Grader, Invalid, Outcome, Scored, require_outcome


class Rubric:
    """A grader: the weighted mean of others, each of which is a part of the score."""

    def __init__(self, graders: Mapping[str, tuple[float, Grader]]) -> None:
        """Weigh graders.

        Args:
            graders: Name of the part to weight and grader; only the weights' ratios count.

        Raises:
            ValueError: no grader, or a weight that is not above 0.
        """
        if not graders:
            raise ValueError("a rubric needs a grader")
        for name, (weight, _) in graders.items():
            if not 0 < weight < math.inf:
                raise ValueError(f"part {name} has the weight {weight}, which is not above 0")
        total = sum(weight for weight, _ in graders.values())
        self._graders = {
            name: (weight / total, grader) for name, (weight, grader) in graders.items()
        }

    async def __call__(self, episode: Episode) -> Outcome:
        """Grade an episode; the first Invalid outcome is that of the whole."""
        value, parts = 0.0, {}
        for name, (share, grader) in self._graders.items():
            outcome = require_outcome(await grader(episode))
            if isinstance(outcome, Invalid):
                return outcome
            parts[name] = outcome.value
            value += share * outcome.value
        is_full = all(part == 1.0 for part in parts.values())  # shares may add up to 0.9999...
        return Scored(value=1.0 if is_full else min(1.0, value), parts=parts)
