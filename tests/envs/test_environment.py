"""Driving an environment: its hooks, and what happens when its code raises."""

import pickle
import time

import pytest

from envs.environment import (
    EnvironmentFailure,
    EnvironmentSpec,
    answer_text,
    collect_artifacts,
    end_episode,
    is_done,
    restore_snapshot,
    start_episode,
    take_snapshot,
    takes_text,
)
from envs.messages import Message, Role, ToolCall
from envs.task import Task
from envs.tools import call_tool, tool_specs


class Sync:
    def reset(self, name):
        self.name = name
        return f"hello {name}"

    def done(self):
        return True

    def artifacts(self):
        return {"name": self.name}


class Async:
    async def reset(self):
        return "hello"

    async def done(self):
        return True

    async def artifacts(self):
        return {"x": 1}

    async def close(self):
        self.is_closed = True


class Bare:
    def reset(self):
        return "hello"


class Broken:
    def reset(self):
        raise KeyError("no such\n row")

    def done(self):
        raise RuntimeError

    def artifacts(self):
        return 3


def make_task(**data):
    return Task(id="a/1", environment="a", grader="g", data=data)


def make_spec(environment):
    return EnvironmentSpec(name="a", environment=environment, tasks=lambda split: [])


async def test_the_data_of_a_task_reaches_reset_by_name():
    environment, opening = await start_episode(make_spec(Sync), make_task(name="gallium"))
    assert opening == "hello gallium"
    assert await is_done(environment)
    assert await collect_artifacts(environment) == {"name": "gallium"}


async def test_hooks_may_be_async():
    environment, opening = await start_episode(make_spec(Async), make_task())
    assert opening == "hello"
    assert await is_done(environment)
    assert await collect_artifacts(environment) == {"x": 1}
    await end_episode(environment)
    assert environment.is_closed


async def test_only_reset_is_required():
    environment, _ = await start_episode(make_spec(Bare), make_task())
    assert not await is_done(environment)
    assert await collect_artifacts(environment) == {}
    await end_episode(environment)


async def test_what_reset_raises_is_a_failure_of_one_line_with_its_cause():
    with pytest.raises(EnvironmentFailure, match=r"a: reset raised KeyError: .*no such") as caught:
        await start_episode(make_spec(Broken), make_task())
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)


async def test_data_that_reset_does_not_take_is_a_failure():
    with pytest.raises(EnvironmentFailure, match="unexpected keyword argument 'wrong'"):
        await start_episode(make_spec(Bare), make_task(wrong=1))


async def test_an_opening_that_is_no_text_is_a_failure():
    class Mute:
        def reset(self):
            return None

    with pytest.raises(EnvironmentFailure, match="NoneType, not text"):
        await start_episode(make_spec(Mute), make_task())


async def test_broken_hooks_are_failures():
    with pytest.raises(EnvironmentFailure, match="done raised RuntimeError"):
        await is_done(Broken())
    with pytest.raises(EnvironmentFailure, match="artifacts returned int"):
        await collect_artifacts(Broken())


def test_a_failure_survives_pickling():
    assert str(pickle.loads(pickle.dumps(EnvironmentFailure("it broke")))) == "it broke"


def test_a_message_must_fit_its_role():
    with pytest.raises(ValueError, match="cannot carry tool calls"):
        Message(role=Role.USER, tool_calls=(ToolCall(name="search"),))
    with pytest.raises(ValueError, match="does not fit"):
        Message(role=Role.TOOL, text="reply")


@pytest.mark.parametrize("field", ["id", "environment", "grader"])
def test_a_task_must_be_named(field):
    with pytest.raises(ValueError, match=f"{field} is empty"):
        Task(**{"id": "a", "environment": "b", "grader": "c", field: ""})


async def test_artifacts_that_are_not_json_are_the_environments_failure():
    class Holder:
        def artifacts(self):
            return {"x": object()}

    with pytest.raises(EnvironmentFailure, match="JSON"):
        await collect_artifacts(Holder())


class TrlGame:
    """As TRL's documents write one: a reward of its own, errors that the policy is told."""

    def __init__(self):
        self.tries = 0

    def reset(self, **row):
        self.secret = row["secret"]

    def guess(self, number: int) -> dict:
        """Guess.

        Args:
            number: The guess.
        """
        if self.tries == 1:
            raise ValueError("game over")
        self.tries += 1
        self.is_right = number == self.secret
        return {"right": self.is_right}

    def get_reward(self):
        return 1.0 if self.is_right else 0.0


async def test_a_class_for_trl_is_driven_as_trl_does():
    prompt = [{"role": "system", "content": "play"}, {"role": "user", "content": "guess"}]
    environment, opening = await start_episode(
        make_spec(TrlGame), make_task(secret=3, prompt=prompt)
    )
    assert opening == "play\nguess"
    call = ToolCall(name="guess", arguments={"number": 3})
    assert await call_tool(environment, call) == "{'right': True}"
    assert await call_tool(environment, call) == "error: game over"
    assert await collect_artifacts(environment) == {"reward": 1.0}
    assert [tool.name for tool in tool_specs(TrlGame)] == ["guess"]


async def test_reset_gets_the_seed_of_the_task_where_it_asks_for_it():
    class Dice:
        def reset(self, seed: int) -> str:
            return f"seed {seed}"

    task = Task(id="a/1", environment="a", grader="g", seed=7)
    assert (await start_episode(make_spec(Dice), task))[1] == "seed 7"


async def test_a_reset_that_sleeps_is_a_failure():
    class Sleeper:
        def reset(self):
            time.sleep(2)

    started = time.perf_counter()
    with pytest.raises(EnvironmentFailure, match=r"a: reset took longer than 0\.05 s"):
        await start_episode(make_spec(Sleeper), make_task(), 0.05)
    assert time.perf_counter() - started < 1.5


async def test_text_that_is_no_utf8_is_mended():
    class Torn:
        def reset(self):
            return "a\udc80b"

        def step(self, text):
            return text + "\udcff"

    environment, opening = await start_episode(make_spec(Torn), make_task())
    assert opening == "a?b"
    assert takes_text(environment)
    assert await answer_text(environment, "x") == "x?"
    long_reply = await answer_text(environment, "x" * 10_000_000, max_characters=3)
    assert long_reply == "xxx\n(cut: 10000001 characters)"


async def test_a_snapshot_is_json_and_goes_back():
    class Counter:
        def reset(self):
            self.count = 0
            return ""

        def snapshot(self):
            return {"count": self.count}

        async def restore(self, state):
            self.count = state["count"]

    environment, _ = await start_episode(make_spec(Counter), make_task())
    environment.count = 5
    state = await take_snapshot(environment)
    environment.count = 9
    await restore_snapshot(environment, state)
    assert environment.count == 5
