from dataclasses import replace

import pytest

from envs.config import EnvironmentConfig
from envs.environment import EnvironmentSpec
from envs.task import Task
from rewards.config import InvalidRule
from rewards.reward import Blame, Invalid, Scored
from rollout.config import RolloutConfig
from rollout.conversation import Attempt
from rollout.group_runner import GroupRunner
from rollout.scripted_engine import ScriptedEngine
from rollout.tokenizer import Tokenizer

TOKENIZER = Tokenizer.train(["stop"], 270)
TURN = [*TOKENIZER.encode("stop"), TOKENIZER.end_id]
TASK = Task(id="q/1", environment="q", grader="g")
RETRY = InvalidRule(action="retry", blame="infrastructure", max_retries=2)
ZERO = InvalidRule(action="zero", blame="model")


class Question:
    def reset(self) -> str:
        return "go"


async def play(monkeypatch, outcomes, rule):
    """Play one episode whose grader gives these outcomes, attempt after attempt."""
    given = iter(outcomes)

    async def grade(episode):
        return next(given)

    spec = EnvironmentSpec(name="q", environment=Question, tasks=lambda split: [])
    monkeypatch.setattr("rollout.group_runner.load_environment", lambda name: spec)
    monkeypatch.setattr("rollout.group_runner.load_grader", lambda name: grade)
    config = RolloutConfig(invalid={"broken": rule})
    engine = ScriptedEngine(lambda session, turn: TURN)
    runner = GroupRunner(engine, TOKENIZER, {"q": EnvironmentConfig()}, config, 0)
    return await runner.attempt(TASK, 1.0)


def broken(blame):
    return Invalid(reason="broken", blame=blame)


async def test_a_failure_of_the_infrastructure_is_tried_again_under_another_id(monkeypatch):
    failed = broken(Blame.INFRASTRUCTURE)
    trajectory = await play(monkeypatch, [failed, failed, Scored(value=1.0)], RETRY)
    assert trajectory.reward == 1.0
    assert trajectory.id == "q/1#0@0~2"


async def test_retries_end_and_what_is_left_is_masked(monkeypatch):
    failed = broken(Blame.INFRASTRUCTURE)
    trajectory = await play(monkeypatch, [failed] * 3, RETRY)
    assert trajectory.outcome == failed


async def test_what_the_model_did_counts_as_zero_and_says_so(monkeypatch):
    trajectory = await play(monkeypatch, [broken(Blame.MODEL)], ZERO)
    assert trajectory.outcome == Scored(value=0.0, parts={"invalid/broken": 1.0})


@pytest.mark.parametrize("blame", [Blame.ENVIRONMENT, Blame.INFRASTRUCTURE, Blame.GRADER])
async def test_nothing_else_becomes_zero_under_the_same_reason(monkeypatch, blame):
    assert (await play(monkeypatch, [broken(blame)], ZERO)).outcome == broken(blame)


def test_a_retry_samples_under_other_seeds():
    attempt = Attempt(task=TASK)
    assert attempt.turn_seed(0) != replace(attempt, retry=1).turn_seed(0)
