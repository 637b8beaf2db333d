import asyncio

import pytest

from envs.config import EnvironmentConfig
from envs.environment import EnvironmentSpec
from envs.task import Task
from rewards.reward import Scored
from rollout.config import RolloutConfig
from rollout.engine import EngineError
from rollout.group_runner import GroupRunner
from rollout.input_error import InputError
from rollout.scripted_engine import ScriptedEngine
from rollout.tokenizer import Tokenizer

TOKENIZER = Tokenizer.train(["stop"], 270)
STOP = [TOKENIZER.call_id, *TOKENIZER.encode("stop"), TOKENIZER.end_id]


class Light:
    """A light that can be stopped."""

    def reset(self) -> str:
        self.has_stopped = False
        return "go"

    def stop(self) -> str:
        """Stop."""
        self.has_stopped = True
        return "ok"

    def done(self) -> bool:
        return self.has_stopped


async def grade(episode):
    return Scored(value=1.0)


TASK = Task(id="light/1", environment="light", grader="light_grader")


def make_runner(engine, monkeypatch, **fields):
    spec = EnvironmentSpec(name="light", environment=Light, tasks=lambda split: [])
    monkeypatch.setattr("rollout.group_runner.load_environment", lambda name: spec)
    monkeypatch.setattr("rollout.group_runner.load_grader", lambda name: grade)
    config = RolloutConfig(**fields)
    return GroupRunner(engine, TOKENIZER, {"signal": EnvironmentConfig(use="light")}, config, 0)


async def test_siblings_play_at_once_and_come_back_in_order(monkeypatch):
    engine = ScriptedEngine(lambda session, turn: STOP, seconds_per_turn=0.02)
    group = await make_runner(engine, monkeypatch).run_group(TASK, 8, 3)
    assert group.id == "light/1@3"
    assert [member.id for member in group.trajectories] == [f"light/1#{i}@3" for i in range(8)]
    assert engine.max_open_sessions == 8
    assert all(member.reward == 1.0 for member in group.trajectories)


async def test_no_more_episodes_than_allowed_are_open_over_all_groups(monkeypatch):
    engine = ScriptedEngine(lambda session, turn: STOP, seconds_per_turn=0.01)
    runner = make_runner(engine, monkeypatch, max_concurrent_episodes=3)
    await asyncio.gather(*(runner.run_group(TASK, 4, round_) for round_ in range(3)))
    assert engine.max_open_sessions == 3


async def test_an_engine_failure_comes_out_as_it_is_and_nothing_stays_open(monkeypatch):
    def script(session, turn):
        if "#1@" in session:
            raise EngineError("gone")
        return STOP

    engine = ScriptedEngine(script, seconds_per_turn=0.01)
    with pytest.raises(EngineError, match=r"^gone$"):
        await make_runner(engine, monkeypatch).run_group(TASK, 4, 0)
    assert not engine.open_sessions


async def test_a_task_of_an_environment_that_the_run_has_not_is_one_clear_line(monkeypatch):
    task = Task(id="x/1", environment="other", grader="g")
    runner = make_runner(ScriptedEngine(lambda session, turn: STOP), monkeypatch)
    with pytest.raises(InputError, match=r"x/1: environment 'other' is none of this run's: signal"):
        await runner.run_group(task, 2, 0)


async def test_an_evaluation_takes_its_own_temperature(monkeypatch):
    engine = ScriptedEngine(lambda session, turn: STOP)
    await make_runner(engine, monkeypatch, temperature=0.7).attempt(TASK, temperature=0.3)
    assert engine.sampling["light/1#0@0"][0].temperature == 0.3
