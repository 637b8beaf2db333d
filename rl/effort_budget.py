"""The effort budget of Kimi K3 (arXiv 2607.24653): who writes far more than was needed has failed.

Takes a trajectory and what its task took before training, returns its reward. With T(y) the tokens
that the policy wrote, in all turns, and b0(x) the mean of the same over the attempts of the policy
that training began with,

    R = -1  where T(y) > tau b0(x)

b0 is read from a folder of recorded trajectories, one that `limosa collect` left. A task that is
not in there has no budget.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from rl.config import CreditSection
from rollout.trajectory import Trajectory
from rollout.trajectory_store import read_groups

OVER_BUDGET = -1.0
"""Reward of a trajectory over its budget, whatever the grader gave it."""


def read_effort(folder: Path) -> dict[str, float]:
    """Read what each task took: the mean tokens that the policy wrote, by the task's id.

    Args:
        folder: A run folder with trajectories, of the policy that training begins with.

    Raises:
        ValueError: there is no trajectory in it.
    """
    written: dict[str, list[int]] = defaultdict(list)
    for path in sorted((folder / "trajectories").glob("*.jsonl")):
        for group in read_groups(path):
            written[group.task.id] += [member.num_sampled for member in group.trajectories]
    if not written:
        raise ValueError(
            f"credit.effort_folder = {folder} holds no trajectories: make it with `limosa collect`"
        )
    return {task: sum(counts) / len(counts) for task, counts in written.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class EffortBudget:
    """What trajectories may take."""

    effort: Mapping[str, float] = field(default_factory=dict)
    """b0 by the task's id; a task without one has no budget."""
    tau: float = 2.0
    """Times b0 that may be written."""

    @classmethod
    def load(cls, section: CreditSection) -> Self:
        """Read the budgets of a configuration; none if it names no folder.

        Raises:
            ValueError: there is no trajectory in the folder.
        """
        if section.effort_folder is None:
            return cls()
        return cls(effort=read_effort(section.effort_folder), tau=section.effort_tau)

    def reward(self, trajectory: Trajectory) -> float | None:
        """Return the score, OVER_BUDGET where the trajectory took too much, None without a score.

        A trajectory without a score says nothing, whatever it took.
        """
        base = self.effort.get(trajectory.episode.task.id)
        is_over = base is not None and trajectory.num_sampled > self.tau * base
        return OVER_BUDGET if is_over and trajectory.reward is not None else trajectory.reward
