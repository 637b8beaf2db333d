"""An environment's own reward is a score, or Invalid; a rubric weighs graders."""

import math

import pytest

from envs.episode import Episode, StopReason
from envs.task import Task
from rewards.own_reward import grade
from rewards.reward import Blame, Invalid, Scored
from rewards.rubric import Rubric


def make_episode(**artifacts):
    task = Task(id="a", environment="a", grader="g")
    return Episode(task=task, messages=(), stop=StopReason.FINISHED, artifacts=artifacts)


@pytest.mark.parametrize(("reward", "value"), [(0.5, 0.5), (1, 1.0), (True, 1.0), (0, 0.0)])
async def test_a_reward_is_a_score(reward, value):
    assert await grade(make_episode(reward=reward)) == Scored(value=value)


@pytest.mark.parametrize("reward", [math.nan, 2.0, -0.1, "1", None])
async def test_what_is_no_score_is_the_environments_fault(reward):
    outcome = await grade(make_episode(reward=reward))
    assert isinstance(outcome, Invalid)
    assert (outcome.reason, outcome.blame) == ("reward_invalid", Blame.ENVIRONMENT)


async def right(episode):
    return Scored(value=1.0)


async def half(episode):
    return Scored(value=0.5)


async def broken(episode):
    return Invalid(reason="judge_down", blame=Blame.GRADER)


async def test_a_rubric_is_the_weighted_mean_and_keeps_the_parts():
    outcome = await Rubric({"answer": (3.0, right), "style": (1.0, half)})(make_episode())
    assert outcome == Scored(value=0.875, parts={"answer": 1.0, "style": 0.5})
    weights = dict.fromkeys("abcdefghij", (0.1, right))
    assert (await Rubric(weights)(make_episode())).value == 1.0


async def test_a_part_without_a_score_leaves_the_whole_without_one():
    outcome = await Rubric({"answer": (1.0, right), "judge": (1.0, broken)})(make_episode())
    assert outcome == Invalid(reason="judge_down", blame=Blame.GRADER)


@pytest.mark.parametrize("graders", [{}, {"a": (0.0, right)}, {"a": (math.nan, right)}])
def test_a_rubric_without_weight_is_refused(graders):
    with pytest.raises(ValueError, match=r"rubric|weight"):
        Rubric(graders)
