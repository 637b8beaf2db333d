"""Builders of small trajectories, for the tests of the learning side."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from envs.episode import Episode, StopReason
from envs.task import Task
from rewards.reward import Blame, Invalid, Scored
from rollout.trajectory import Group, Segment, Source, TokenSpan, Trajectory

SegmentBuilder = Callable[..., Segment]
GroupBuilder = Callable[..., Group]


def _build_segment(
    token_ids: Sequence[int] = (5, 6, 7, 8),
    prompt: int = 2,
    versions: Sequence[int] = (0,),
    logprob: float = -1.0,
    experts: int | None = None,
) -> Segment:
    """One prompt of `prompt` tokens, then POLICY tokens, split evenly over `versions`."""
    length = len(token_ids)
    spans = [
        TokenSpan(start=0, stop=prompt, source=Source.PROMPT, turn=0, policy_version=versions[0])
    ]
    bounds = np.linspace(prompt, length, len(versions) + 1).astype(int)
    for turn, (version, start, stop) in enumerate(
        zip(versions, bounds[:-1], bounds[1:], strict=True)
    ):
        spans.append(
            TokenSpan(
                start=int(start),
                stop=int(stop),
                source=Source.POLICY,
                turn=turn,
                policy_version=version,
            )
        )
    logprobs = np.zeros(length, dtype=np.float32)
    logprobs[prompt:] = logprob
    expert_ids = None if experts is None else np.full((length, 1, 2), experts, dtype=np.int16)
    return Segment(
        token_ids=np.array(token_ids, dtype=np.int32),
        spans=tuple(spans),
        behavior_logprobs=logprobs,
        expert_ids=expert_ids,
    )


def _build_group(
    rewards: Sequence[float | None],
    name: str = "task",
    environment: str = "toy",
    segments: Sequence[Segment] | None = None,
) -> Group:
    """One sibling for each reward; None is an Invalid outcome."""
    task = Task(id=name, environment=environment, grader="toy")
    members = []
    for index, reward in enumerate(rewards):
        outcome = (
            Invalid(reason="sandbox_failed", blame=Blame.INFRASTRUCTURE)
            if reward is None
            else Scored(value=reward)
        )
        members.append(
            Trajectory(
                id=f"{name}#{index}@0",
                episode=Episode(task=task, messages=(), stop=StopReason.FINISHED),
                segments=(segments[index] if segments else _build_segment(),),
                turns=(),
                outcome=outcome,
            )
        )
    return Group(id=name, task=task, trajectories=tuple(members))


@pytest.fixture
def build_segment() -> SegmentBuilder:
    return _build_segment


@pytest.fixture
def build_group() -> GroupBuilder:
    return _build_group
