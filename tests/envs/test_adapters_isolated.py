"""Foreign environments in virtual environments of their own: the protocol, the real packages."""

import asyncio
import sys

import psutil
import pytest

from envs.adapters import isolated
from envs.adapters.isolated import isolated_environment
from envs.adapters.worker import Worker, WorkerError
from envs.cache import cache_folder
from envs.config import EnvironmentConfig
from envs.environment import Split
from envs.messages import Message, Role, ToolCall
from envs.play import play
from envs.task_sets import list_tasks
from envs.tools import tool_specs
from rewards.check import check_rewards
from rewards.own_reward import grade
from rewards.reward import Scored

FAKE_WORLD = """
import asyncio, os, sys

def load(reference, num_tasks):
    if reference == "nowhere":
        raise ValueError("no such world")
    print("noise on standard output")
    return Family(num_tasks)

class Family:
    def __init__(self, num_tasks):
        self.num_tasks = num_tasks
    async def tools(self):
        schema = {"type": "object", "properties": {"number": {"type": "integer"}}}
        schema["required"] = ["number"]
        return [{"name": "guess", "description": "Guess.", "schema": schema}]
    async def list_tasks(self):
        return [{"id": str(index)} for index in range(self.num_tasks)]
    async def start(self, task, seed):
        return Live(int(task))

class Live:
    def __init__(self, task):
        self.opening, self.is_done, self.value, self.task = f"number {task}?", False, None, task
    async def call(self, name, arguments):
        number = arguments["number"]
        if number == 13:
            raise RuntimeError("broken\\nworld")
        if number == 99:
            os._exit(7)
        if number < 0:
            return "no negative number", True
        await asyncio.sleep(0.01 * (5 - number))
        self.is_done, self.value = True, float(number == self.task % 5)
        return f"you said {number}", False
    async def score(self):
        return self.value
    async def close(self):
        pass
"""


def call(name, **arguments):
    return Message(role=Role.POLICY, tool_calls=(ToolCall(name=name, arguments=arguments),))


def all_tasks(spec):
    return [task for split in Split for task in list_tasks(spec, EnvironmentConfig(), split)]


def play_calls(spec, *actions, task=0):
    chosen = sorted(all_tasks(spec), key=lambda each: each.seed)[task]
    script = iter(actions)
    return asyncio.run(play(spec, chosen, lambda _: next(script), max_turns=len(actions)))


def score(episode):
    return asyncio.run(grade(episode))


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A family `openenv` whose virtual environment is this one, and whose world is made up."""
    workers = tmp_path / "workers"
    workers.mkdir()
    serve = isolated._SERVE
    (workers / "serve.py").write_text(serve.read_text())
    (workers / "openenv_world.py").write_text(FAKE_WORLD)
    python = tmp_path / "adapters" / "openenv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    monkeypatch.setenv("LIMOSA_CACHE", str(tmp_path))
    monkeypatch.setattr(isolated, "_SERVE", workers / "serve.py")
    isolated.start_worker.cache_clear()
    started = []

    def make(reference="here", num_tasks=20):
        spec = isolated_environment(
            name="fake", family="openenv", reference=reference, num_tasks=num_tasks
        )
        started.append(spec.environment.worker)
        return spec

    yield make
    for worker in started:
        worker.stop()
    isolated.start_worker.cache_clear()


def test_a_worker_s_tools_tasks_and_reward_are_the_environment_s(fake):
    spec = fake()
    assert [tool.name for tool in tool_specs(spec.environment)] == ["guess"]
    assert len(all_tasks(spec)) == 20
    episode = play_calls(spec, call("guess", number=3), task=3)
    assert [message.text for message in episode.messages] == ["number 3?", "", "you said 3"]
    assert score(episode).value == 1.0
    assert score(play_calls(spec, call("guess", number=2), task=3)).value == 0.0


def test_what_the_policy_does_wrong_is_an_error_and_what_breaks_is_a_failure(fake):
    spec = fake()
    episode = play_calls(spec, call("guess", number=-1), call("guess", number=13))
    assert episode.messages[2].text == "error: no negative number"
    assert episode.stop == "environment_error"
    assert "RuntimeError: broken world" in episode.error


def test_a_worker_that_dies_fails_its_episodes_and_the_next_has_a_new_one(fake):
    spec = fake()
    episode = play_calls(spec, call("guess", number=99))
    assert episode.stop == "environment_error"
    assert "the worker ended" in episode.error
    assert score(play_calls(spec, call("guess", number=0))).value == 1.0


def test_episodes_run_at_once_in_one_worker_and_replies_find_their_way(fake):
    spec = fake()
    worker = spec.environment.worker

    async def ask(index):
        await worker.ask_async("reset", episode=f"e{index}", task=str(index), seed=0)
        reply = await worker.ask_async(
            "call_tool", episode=f"e{index}", name="guess", arguments={"number": index}
        )
        return reply["text"]

    async def ask_all():
        return await asyncio.gather(*map(ask, range(5)))

    assert asyncio.run(ask_all()) == [f"you said {index}" for index in range(5)]


def test_a_worker_ends_with_the_process_that_asks(tmp_path):
    (tmp_path / "serve.py").write_text(isolated._SERVE.read_text())
    (tmp_path / "fake_world.py").write_text(FAKE_WORLD)
    worker = Worker([sys.executable, str(tmp_path / "serve.py"), "fake", "here", "3"])
    assert worker.ask("hello")["protocol"] == 1
    with pytest.raises(WorkerError, match="KeyError"):
        worker.ask("score", episode="unknown")
    process = psutil.Process(worker._process.pid)
    worker._process.stdin.close()  # as the kernel does for whoever dies
    process.wait(10)


def test_what_a_user_got_wrong_is_one_line(fake, monkeypatch, tmp_path):
    with pytest.raises(ValueError, match=r"^openenv: the worker ended: ValueError: no such world"):
        fake("nowhere")
    with pytest.raises(ValueError, match="no family 'harbour' of adapters"):
        isolated_environment(name="x", family="harbour", reference="y")
    monkeypatch.setenv("LIMOSA_CACHE", str(tmp_path / "empty"))
    isolated.start_worker.cache_clear()
    with pytest.raises(ValueError, match=r"^no virtual environment for openenv in .*make adapters"):
        isolated_environment(name="x", family="openenv", reference="y")


def needs(family):
    return pytest.mark.skipif(
        not (cache_folder() / "adapters" / family).exists(),
        reason=f"no {family} here: make adapters",
    )


VERIFIERS_TASKSET = '''
import verifiers.v1 as vf

__all__ = ["CapitalsTaskset"]
CAPITALS = {"France": "Paris", "Norway": "Oslo", "Peru": "Lima", "Japan": "Tokyo",
            "Kenya": "Nairobi", "Chile": "Santiago", "Cuba": "Havana", "Ghana": "Accra",
            "India": "New Delhi", "Egypt": "Cairo", "Spain": "Madrid", "Italy": "Rome"}


class CapitalsData(vf.TaskData):
    answer: str


class AtlasToolset(vf.Toolset[vf.ToolsetConfig, vf.State]):
    TOOL_PREFIX = "atlas"

    @vf.tool
    def look_up(self, country: str) -> str:
        """Look up the capital of a country."""
        return CAPITALS[country]


class CapitalsTask(vf.Task[CapitalsData, vf.State, vf.TaskConfig]):
    @classmethod
    def toolsets(cls, config):
        return [AtlasToolset(vf.ToolsetConfig())]

    @vf.reward(weight=0.75)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.25)
    async def looked_up(self, trace: vf.Trace) -> float:
        return float(any(message.content == self.data.answer for message in trace.tool_messages))


class CapitalsTaskset(vf.Taskset[CapitalsTask, vf.TasksetConfig]):
    def load(self):
        for country, capital in CAPITALS.items():
            prompt = f"What is the capital of {country}?"
            yield CapitalsTask(CapitalsData(prompt=prompt, answer=capital), self.config_task())

    def config_task(self):
        return vf.TaskConfig()
'''


@needs("verifiers")
@pytest.mark.slow
def test_a_taskset_of_verifiers_plays_scores_and_passes_the_check(tmp_path, monkeypatch):
    (tmp_path / "capitals_taskset.py").write_text(VERIFIERS_TASKSET)
    monkeypatch.chdir(tmp_path)
    isolated.start_worker.cache_clear()
    spec = isolated_environment(
        name="capitals", family="verifiers", reference="capitals_taskset", num_tasks=12
    )
    try:
        names = {tool.name for tool in tool_specs(spec.environment)}
        assert names == {"atlas_look_up", "answer"}
        episode = play_calls(
            spec,
            call("atlas_look_up", country="Nowhere"),
            call("atlas_look_up", country="France"),
            call("answer", text="Paris"),
        )
        assert episode.messages[0].text == "What is the capital of France?"
        assert episode.messages[2].text.startswith("error: ")
        assert episode.messages[4].text == "Paris"
        assert score(episode) == Scored(value=1.0)
        assert score(play_calls(spec, call("answer", text="Paris"))).value == 0.75
        assert score(play_calls(spec, call("answer", text="Rome"))).value == 0.0
        assert asyncio.run(check_rewards(spec, num_tasks=1)) == []
    finally:
        spec.environment.worker.stop()


OPENENV_WORLD = '''
from fastmcp import FastMCP
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    """Guess the number."""
    number: int


class Hint(Observation):
    text: str


class NumberWorld(Environment[Guess, Hint, State]):
    def reset(self, seed=None, episode_id=None, **kwargs):
        self.number = seed % 7
        return Hint(text="guess a number from 0 to 6")

    def step(self, action, timeout_s=None, **kwargs):
        if action.number == self.number:
            return Hint(text="right", done=True, reward=1.0)
        return Hint(text="higher" if action.number < self.number else "lower", reward=0.0)

    @property
    def state(self):
        return State()


class SumWorld(MCPEnvironment):
    def __init__(self):
        server = FastMCP("sums")

        @server.tool
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        super().__init__(server)

    def reset(self, seed=None, episode_id=None, **kwargs):
        return Observation(metadata={})

    def _step_impl(self, action, timeout_s=None, **kwargs):
        raise ValueError("tools only")

    @property
    def state(self):
        return State()
'''


@needs("openenv")
@pytest.mark.slow
def test_environments_of_openenv_play_score_and_pass_the_check(tmp_path, monkeypatch):
    (tmp_path / "number_world.py").write_text(OPENENV_WORLD)
    monkeypatch.chdir(tmp_path)
    isolated.start_worker.cache_clear()
    spec = isolated_environment(
        name="numbers", family="openenv", reference="number_world:NumberWorld", num_tasks=20
    )
    try:
        assert [tool.name for tool in tool_specs(spec.environment)] == ["act"]
        episode = play_calls(spec, call("act", number=2), call("act", number=4), task=4)
        assert [message.text for message in episode.messages[::2]] == [
            "guess a number from 0 to 6",
            "higher",
            "right",
        ]
        assert score(episode).value == 1.0
        assert score(play_calls(spec, call("act", number=2), task=4)).value == 0.0
        assert asyncio.run(check_rewards(spec, num_tasks=1)) == []
    finally:
        spec.environment.worker.stop()


@needs("openenv")
@pytest.mark.slow
def test_mcp_tools_of_openenv_are_the_policys(tmp_path, monkeypatch):
    (tmp_path / "number_world.py").write_text(OPENENV_WORLD)
    monkeypatch.chdir(tmp_path)
    isolated.start_worker.cache_clear()
    spec = isolated_environment(
        name="sums", family="openenv", reference="number_world:SumWorld", num_tasks=4
    )
    try:
        assert [tool.name for tool in tool_specs(spec.environment)] == ["add"]
        assert play_calls(spec, call("add", a=2, b=3)).messages[2].text == "5"
    finally:
        spec.environment.worker.stop()
