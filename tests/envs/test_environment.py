"""Driving an environment: its hooks, and what happens when its code raises."""

import pickle

import pytest

from envs.environment import (
    EnvironmentFailure,
    EnvironmentSpec,
    collect_artifacts,
    end_episode,
    is_done,
    start_episode,
)
from envs.messages import Message, Role, ToolCall
from envs.task import Task


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
