"""Agent programs as environments: episodes that they play, and how they fail."""

import asyncio

import numpy as np
import openai
import pytest

from envs.config import EnvironmentConfig
from envs.episode import StopReason
from envs.program import ProgramSpec
from envs.sandboxes import registry
from envs.sandboxes.protocol import SandboxError
from envs.task import Task
from rewards.reward import Blame, Scored
from rollout import group_runner
from rollout.config import RolloutConfig
from rollout.engine import EngineError
from rollout.group_runner import GroupRunner
from rollout.scripted_engine import ScriptedEngine
from rollout.tokenizer import Tokenizer

TOKENIZER = Tokenizer.train(["what is six times seven print 42"] * 5, 300)
PROGRAM = [*TOKENIZER.encode("print(6 * 7)"), TOKENIZER.end_id]
CONFIG = RolloutConfig(max_turns=2, max_tokens=200, max_sampled_tokens=60)
TASK = Task(
    id="sums/1",
    environment="sums",
    grader="sums:grade",
    data={"question": "what is six times seven"},
    reference={"answer": "42"},
)


async def grade(episode):
    return Scored(value=float(episode.artifacts.get("answer") == episode.task.reference["answer"]))


async def ask(endpoint, question):
    async with openai.AsyncOpenAI(
        base_url=endpoint.openai_url, api_key=endpoint.api_key, max_retries=0
    ) as client:
        messages = [{"role": "user", "content": question}]
        completion = await client.chat.completions.create(model="any", messages=messages)
        return completion.choices[0].message.content


async def solve(task, endpoint, sandbox):
    """Run what the policy writes, in the sandbox."""
    assert task.reference == {}
    code = await ask(endpoint, task.data["question"])
    await sandbox.write("solution.py", code.encode())
    result = await sandbox.exec(["python3", "solution.py"])
    return {"answer": result.stdout.decode().strip()}


@pytest.fixture
def play(monkeypatch):
    """Play a group with a program, the way a run does."""

    def play_program(run, *, engine=None, group_size=1, **options):
        spec = ProgramSpec(name="sums", run=run, tasks=[], **{"sandbox": None, **options})
        monkeypatch.setattr(group_runner, "load_environment", lambda _: spec)
        monkeypatch.setattr(group_runner, "load_grader", lambda _: grade)
        engine = engine or ScriptedEngine(lambda session_id, turn: PROGRAM)

        async def run_group():
            runner = GroupRunner(engine, TOKENIZER, {"sums": EnvironmentConfig()}, CONFIG, seed=0)
            try:
                return await runner.run_group(TASK, group_size, 0)
            finally:
                await runner.close()
                assert engine.open_sessions == set()

        return asyncio.run(run_group()).trajectories

    return play_program


def test_what_the_policy_wrote_runs_in_the_sandbox_and_is_graded(play):
    from envs.sandboxes.protocol import SandboxLimits

    (trajectory,) = play(solve, sandbox=SandboxLimits())
    assert trajectory.episode.artifacts == {"answer": "42"}
    assert trajectory.outcome == Scored(value=1.0)
    assert trajectory.episode.stop is StopReason.FINISHED
    (segment,) = trajectory.segments
    assert segment.token_ids[segment.loss_mask].tolist() == PROGRAM
    np.testing.assert_allclose(segment.behavior_logprobs[segment.loss_mask], np.log(0.5))


def test_siblings_are_recorded_apart(play):
    async def say_whose(task, endpoint, sandbox):
        return {"answer": await ask(endpoint, "print")}

    texts = [["print"], ["42"], ["six"]]
    engine = ScriptedEngine(
        lambda session_id, turn: [
            *TOKENIZER.encode(texts[int(session_id[session_id.index("#") + 1])][turn]),
            TOKENIZER.end_id,
        ],
        seconds_per_turn=0.02,
    )
    trajectories = play(say_whose, engine=engine, group_size=3)
    assert [each.episode.artifacts["answer"] for each in trajectories] == ["print", "42", "six"]
    assert [each.reward for each in trajectories] == [0.0, 1.0, 0.0]
    assert engine.max_open_sessions == 3


def test_a_program_that_raises_is_an_invalid_outcome(play):
    async def fall(task, endpoint, sandbox):
        await ask(endpoint, "print")
        raise KeyError("plan")

    (trajectory,) = play(fall)
    assert trajectory.invalid.reason == "environment_failed"
    assert trajectory.invalid.blame is Blame.ENVIRONMENT
    assert trajectory.num_sampled == len(PROGRAM)


@pytest.mark.parametrize("returned", [["42"], {"answer": object()}])
def test_artifacts_that_cannot_be_recorded_are_an_invalid_outcome(play, returned):
    async def give(task, endpoint, sandbox):
        return returned

    assert play(give)[0].invalid.reason == "environment_failed"


def test_a_program_that_hangs_is_an_invalid_outcome(play):
    async def hang(task, endpoint, sandbox):
        await asyncio.sleep(60)

    (trajectory,) = play(hang, timeout_seconds=0.05)
    assert trajectory.invalid.detail == "sums: run took longer than 0.05 s"


def test_a_program_that_gives_up_at_a_spent_budget_is_graded(play):
    async def talk(task, endpoint, sandbox):
        while True:
            await ask(endpoint, "what is six")

    (trajectory,) = play(talk)
    assert trajectory.episode.stop is StopReason.MAX_TURNS
    assert trajectory.outcome == Scored(value=0.0)
    assert len(trajectory.turns) == 2


def test_a_program_that_never_asks_has_an_empty_trajectory(play):
    async def guess(task, endpoint, sandbox):
        return {"answer": "42"}

    (trajectory,) = play(guess)
    assert trajectory.outcome == Scored(value=1.0)
    assert trajectory.num_sampled == 0


def test_no_sandbox_is_the_infrastructures_fault(play, monkeypatch):
    from envs.sandboxes.protocol import SandboxLimits

    async def refuse():
        raise SandboxError("nothing here confines")

    monkeypatch.setattr(registry, "choose_backend", refuse)
    (trajectory,) = play(solve, sandbox=SandboxLimits())
    assert trajectory.invalid.reason == "sandbox_failed"
    assert trajectory.invalid.blame is Blame.INFRASTRUCTURE


def test_an_engine_that_fails_is_raised_whatever_the_program_makes_of_it(play):
    class Broken(ScriptedEngine):
        async def sample(self, *_):
            raise EngineError("the worker died")

    async def shrug(task, endpoint, sandbox):
        try:
            await ask(endpoint, "print")
        except openai.APIError:
            return {"answer": "42"}

    with pytest.raises(EngineError, match="the worker died"):
        play(shrug, engine=Broken(lambda *_: []))
