"""What a batch of groups amounts to, in numbers. Metrics get their names in `rl`, not here."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from rollout.trajectory import Group, Segment, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    """Statistics of the trajectories of some groups."""

    num_trajectories: int
    pass_rate: Mapping[str, float]
    """Share of the scored trajectories of each environment whose score is 1."""
    mean_reward: Mapping[str, float]
    """Mean score of the scored trajectories of each environment."""
    num_scored: Mapping[str, int]
    """Scored trajectories of each environment: the denominator of the two above."""
    invalid: Mapping[str, int]
    """Trajectories without a score, by reason."""
    stops: Mapping[str, int]
    """Trajectories by stop reason."""
    sampled_tokens: int
    """Tokens that the policy wrote."""
    total_tokens: int
    """Tokens of all trajectories that the engine computed at all."""
    computed_tokens: int
    """Tokens that the engine computed, prefill and decode, publish recomputation excluded."""
    publish_recomputed_tokens: int
    """Tokens that the engine computed again because a publish ordered it."""
    mixed_version_tokens: int
    """POLICY tokens after the first change of policy version inside their segment."""
    mean_turns: float
    """Policy messages per trajectory."""
    mean_tokens: float
    """Tokens per trajectory."""
    max_tokens: int
    """Tokens of the longest trajectory."""
    oldest_version: int
    """Lowest policy version that any trajectory began with."""

    @property
    def recomputed_token_ratio(self) -> float:
        """Tokens computed per token of the trajectories: about 1 where no history is re-read."""
        return self.computed_tokens / max(1, self.total_tokens)


def summarize(groups: Iterable[Group]) -> GroupStatistics:
    """Count and average over all trajectories of some groups.

    Raises:
        ValueError: no group.
    """
    trajectories = [member for group in groups for member in group.trajectories]
    if not trajectories:
        raise ValueError("no group to summarize")
    rewards: dict[str, list[float]] = {}
    for trajectory in trajectories:
        scores = rewards.setdefault(trajectory.episode.task.environment, [])
        if trajectory.reward is not None:
            scores.append(trajectory.reward)
    scored = {name: scores for name, scores in rewards.items() if scores}
    invalid = [member.invalid for member in trajectories if member.invalid is not None]
    lengths = [trajectory.num_tokens for trajectory in trajectories]
    return GroupStatistics(
        num_trajectories=len(trajectories),
        pass_rate={
            name: float(np.mean([score >= 1.0 for score in scores]))
            for name, scores in scored.items()
        },
        mean_reward={name: float(np.mean(scores)) for name, scores in scored.items()},
        num_scored={name: len(scores) for name, scores in rewards.items()},
        invalid=dict(Counter(outcome.reason for outcome in invalid)),
        stops=dict(Counter(str(trajectory.episode.stop) for trajectory in trajectories)),
        sampled_tokens=sum(trajectory.num_sampled for trajectory in trajectories),
        total_tokens=sum(
            trajectory.num_tokens for trajectory in trajectories if trajectory.computed_tokens
        ),
        computed_tokens=sum(trajectory.computed_tokens for trajectory in trajectories),
        publish_recomputed_tokens=sum(
            trajectory.publish_recomputed_tokens for trajectory in trajectories
        ),
        mixed_version_tokens=sum(count_mixed_version_tokens(member) for member in trajectories),
        mean_turns=float(np.mean([len(trajectory.turns) for trajectory in trajectories])),
        mean_tokens=float(np.mean(lengths)),
        max_tokens=max(lengths),
        oldest_version=min(trajectory.first_version for trajectory in trajectories),
    )


def count_mixed_version_tokens(trajectory: Trajectory) -> int:
    """Count POLICY tokens whose prefix holds tokens of an older policy version."""
    return sum(_mixed_tokens(segment) for segment in trajectory.segments)


def _mixed_tokens(segment: Segment) -> int:
    return int(segment.loss_mask[segment.single_version_length :].sum())
