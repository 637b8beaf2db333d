"""Episodes in text, played by scripts."""

from envs.environment import EnvironmentSpec
from envs.episode import StopReason
from envs.messages import Message, Role, ToolCall
from envs.play import play
from envs.task import Task

TASK = Task(id="a/1", environment="a", grader="g")


class Counter:
    closed = 0

    def __init__(self):
        self.count = 0

    def reset(self):
        return "count to two"

    def add(self) -> str:
        """Add one."""
        self.count += 1
        return str(self.count)

    def crash(self) -> str:
        """Break."""
        raise RuntimeError("broken")

    def done(self):
        return self.count >= 2

    def artifacts(self):
        return {"count": self.count}

    def close(self):
        Counter.closed += 1


def make_spec(environment=Counter):
    return EnvironmentSpec(name="a", environment=environment, tasks=lambda split: [TASK])


def call(*names):
    return Message(role=Role.POLICY, tool_calls=tuple(ToolCall(name=name) for name in names))


async def test_an_episode_ends_when_the_environment_is_done():
    episode = await play(make_spec(), TASK, lambda messages: call("add"))
    assert episode.stop is StopReason.FINISHED
    assert [(m.role, m.text) for m in episode.messages] == [
        (Role.USER, "count to two"),
        (Role.POLICY, ""),
        (Role.TOOL, "1"),
        (Role.POLICY, ""),
        (Role.TOOL, "2"),
    ]
    assert episode.artifacts == {"count": 2}


async def test_calls_after_the_end_are_not_carried_out():
    episode = await play(make_spec(), TASK, lambda messages: call("add", "add", "add"))
    assert episode.artifacts == {"count": 2}
    assert len(episode.messages) == 4


async def test_an_episode_ends_with_the_turn_budget():
    episode = await play(make_spec(), TASK, lambda messages: call("add"), max_turns=1)
    assert episode.stop is StopReason.MAX_TURNS
    assert episode.artifacts == {"count": 1}


async def test_a_message_without_a_call_ends_the_episode():
    episode = await play(make_spec(), TASK, lambda messages: Message(role=Role.POLICY, text="two"))
    assert episode.stop is StopReason.UNPARSABLE
    assert len(episode.messages) == 2


async def test_a_broken_tool_ends_the_episode_with_its_reason():
    closed = Counter.closed
    episode = await play(make_spec(), TASK, lambda messages: call("crash"))
    assert episode.stop is StopReason.ENVIRONMENT_ERROR
    assert episode.stop.is_failure
    assert episode.error == "Counter.crash raised RuntimeError: broken"
    assert Counter.closed == closed + 1


async def test_a_broken_close_ends_the_episode_with_its_reason():
    class Leaky(Counter):
        def close(self):
            raise OSError("leak")

    episode = await play(make_spec(Leaky), TASK, lambda messages: call("add"))
    assert episode.stop is StopReason.ENVIRONMENT_ERROR
    assert episode.error == "Leaky.close raised OSError: leak"
