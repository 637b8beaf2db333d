import itertools

import numpy as np
import pytest

from envs.episode import Episode, StopReason
from envs.task import Task
from rewards.reward import Blame, Invalid, Scored
from rollout.group_statistics import count_mixed_version_tokens, summarize
from rollout.trajectory import Group, Segment, Source, TokenSpan, Trajectory


def make_trajectory(task, outcome, versions=(0, 0), stop=StopReason.FINISHED):
    """A trajectory of 2 prompt tokens, 3 sampled ones, 2 of a tool and 3 sampled ones."""
    first, second = versions
    spans = (
        TokenSpan(start=0, stop=2, source=Source.PROMPT, turn=0, policy_version=first),
        TokenSpan(start=2, stop=5, source=Source.POLICY, turn=0, policy_version=first),
        TokenSpan(start=5, stop=7, source=Source.TOOL, turn=0, policy_version=second),
        TokenSpan(start=7, stop=10, source=Source.POLICY, turn=1, policy_version=second),
    )
    segment = Segment(
        token_ids=np.arange(10, dtype=np.int32),
        spans=spans,
        behavior_logprobs=np.zeros(10, dtype=np.float32),
    )
    return Trajectory(
        id=f"{task.id}#0@0",
        episode=Episode(task=task, messages=(), stop=stop),
        segments=(segment,),
        turns=(),
        outcome=outcome,
        computed_tokens=9,
        publish_recomputed_tokens=4,
    )


A = Task(id="a/1", environment="a", grader="g")
B = Task(id="b/1", environment="b", grader="g")
BROKEN = Invalid(reason="sandbox_failed", blame=Blame.INFRASTRUCTURE)


def test_invalid_members_are_counted_and_left_out_of_the_pass_rate():
    members = tuple(
        make_trajectory(A, outcome)
        for outcome in (Scored(value=1.0), Scored(value=0.5), Scored(value=0.0), BROKEN)
    )
    other = (make_trajectory(B, BROKEN, stop=StopReason.ENVIRONMENT_ERROR),)
    statistics = summarize(
        [
            Group(id="a/1@0", task=A, trajectories=members),
            Group(id="b/1@0", task=B, trajectories=other),
        ]
    )
    assert statistics.pass_rate == {"a": pytest.approx(1 / 3)}
    assert statistics.mean_reward == {"a": pytest.approx(0.5)}
    assert statistics.num_scored == {"a": 3, "b": 0}
    assert statistics.invalid == {"sandbox_failed": 2}
    assert statistics.stops == {"finished": 4, "environment_error": 1}
    assert (statistics.sampled_tokens, statistics.total_tokens) == (30, 50)
    assert statistics.recomputed_token_ratio == pytest.approx(0.9)
    assert statistics.publish_recomputed_tokens == 20


def test_tokens_after_a_change_of_version_are_mixed():
    mixed = make_trajectory(A, Scored(value=1.0), versions=(3, 4))
    pure = make_trajectory(A, Scored(value=1.0), versions=(4, 4))
    assert count_mixed_version_tokens(mixed) == 3
    assert count_mixed_version_tokens(pure) == 0
    statistics = summarize([Group(id="a/1@0", task=A, trajectories=(mixed, pure))])
    assert (statistics.mixed_version_tokens, statistics.oldest_version) == (3, 3)


def test_nothing_to_summarize_is_refused():
    with pytest.raises(ValueError, match="no group"):
        summarize([])


def test_the_mean_reward_over_all_subsets_that_can_go_missing_is_the_full_mean():
    rewards = (1.0, 0.25, 0.0, 0.5)
    for num_missing in range(len(rewards)):
        means = []
        for missing in itertools.combinations(range(len(rewards)), num_missing):
            members = tuple(
                make_trajectory(A, BROKEN if i in missing else Scored(value=reward))
                for i, reward in enumerate(rewards)
            )
            statistics = summarize([Group(id="a/1@0", task=A, trajectories=members)])
            means.append(statistics.mean_reward["a"])
        assert np.mean(means) == pytest.approx(np.mean(rewards))
