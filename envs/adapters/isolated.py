"""Environments of projects whose pins exclude ours, each in a virtual environment of its own.

    SPEC = isolated_environment(name="notes", family="verifiers", reference="notes_taskset")

`make adapters` makes the virtual environments, in a cache folder. A worker process there serves all
episodes (`workers/serve.py` has the protocol); modules of the working folder are found by it. The
reward is the foreign environment's own.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from envs.adapters.tool_methods import ForeignTool, make_methods
from envs.adapters.worker import Worker
from envs.cache import cache_folder
from envs.environment import EnvironmentSpec, ToolError
from envs.messages import JsonValue

FAMILIES = ("openenv", "verifiers")
"""What `make adapters` makes a virtual environment for."""
_SERVE = Path(__file__).with_name("workers") / "serve.py"


def isolated_environment(
    *, name: str, family: str, reference: str, num_tasks: int = 200
) -> EnvironmentSpec:
    """Make an environment of a foreign one, whose worker is started and asked for its tools.

    Args:
        name: Of the environment.
        family: One of `FAMILIES`.
        reference: What to load: a taskset's module for verifiers, `module:Class` for OpenEnv.
        num_tasks: Tasks of both splits together, at most.

    Raises:
        ValueError: one line: the virtual environment is missing, nothing is found by that
            reference, or it has a tool that a policy cannot call.
    """
    worker = start_worker(family, reference, num_tasks)
    try:
        described = worker.ask("hello")["tools"]
        listed = [task["id"] for task in worker.ask("list_tasks")]
    except ConnectionError as error:
        raise ValueError(f"{family}: {error}") from error
    tools = [
        ForeignTool(**{**tool, "description": tool["description"] or ""}) for tool in described
    ]
    kind = type(
        f"Isolated_{name}",
        (IsolatedWorld,),
        {"worker": worker, **make_methods(tools, IsolatedWorld)},
    )

    rows = [
        {"id": f"{name}/{task}", "seed": seed, "task": task} for seed, task in enumerate(listed)
    ]
    return EnvironmentSpec(name=name, environment=kind, tasks=rows)


@lru_cache
def start_worker(family: str, reference: str, num_tasks: int) -> Worker:
    """Start the one worker of a foreign environment in this process.

    Raises:
        ValueError: one line: there is no such family, or its virtual environment is missing.
    """
    if family not in FAMILIES:
        raise ValueError(f"no family {family!r} of adapters; there are: {', '.join(FAMILIES)}")
    folder = cache_folder() / "adapters"
    python = folder / family / "bin" / "python"
    if not python.exists():
        raise ValueError(f"no virtual environment for {family} in {folder}: make adapters")
    return Worker([str(python), str(_SERVE), family, reference, str(num_tasks)])


class IsolatedWorld:
    """One episode in a worker. A subclass per environment has its tools as methods."""

    worker: Worker

    def __init__(self) -> None:
        """Nothing is there before `reset`."""
        self._episode = uuid4().hex
        self._is_done = False

    async def reset(self, task: str, seed: int) -> str:
        """Begin."""
        return (await self._ask("reset", task=task, seed=seed))["opening"]

    def done(self) -> bool:
        """Whether the foreign environment says so."""
        return self._is_done

    async def reward(self) -> float:
        """What the foreign environment pays; nothing before its episode earned anything."""
        value = (await self._ask("score"))["value"]
        return 0.0 if value is None else float(value)

    async def close(self) -> None:
        """Let the episode go; the worker stays for others."""
        await self._ask("close")

    async def _call(self, tool: str, arguments: Mapping[str, JsonValue]) -> str:
        reply = await self._ask("call_tool", name=tool, arguments=dict(arguments))
        self._is_done = reply["is_done"]
        if reply["is_error"]:
            raise ToolError(reply["text"])
        return reply["text"]

    async def _ask(self, method: str, **parameters: JsonValue) -> Any:  # noqa: ANN401
        return await self.worker.ask_async(method, episode=self._episode, **parameters)
