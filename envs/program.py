"""Program environments: an agent that only knows a base URL plays the episode itself.

    async def run(task, endpoint, sandbox):
        client = openai.AsyncOpenAI(base_url=endpoint.openai_url, api_key=endpoint.api_key)
        ...
        return {"answer": answer}          # the artifacts, for the grader

    SPEC = ProgramSpec(name="my_agent", run=run, tasks=make_tasks, grader="my_agent:grade")

The endpoint speaks the OpenAI chat and responses and the Anthropic messages APIs. Behind it is the
policy that is trained: what it samples there is recorded token by token, for this episode alone.
The program runs in this process, with its rights; what the policy asks it to run belongs in the
sandbox.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from envs.environment import EnvironmentFailure, EnvironmentSpec, boundary
from envs.messages import JsonValue
from envs.sandboxes.protocol import Sandbox, SandboxLimits
from envs.sandboxes.registry import start_sandbox
from envs.task import Task

Artifacts = Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a program finds the policy."""

    base_url: str
    """As Anthropic's clients want it, without `/v1`."""
    api_key: str
    """Names the episode: whoever holds it speaks in it."""

    @property
    def openai_url(self) -> str:
        """As OpenAI's clients want it."""
        return f"{self.base_url}/v1"

    def variables(self) -> dict[str, str]:
        """Environment variables by which most agent programs find their model."""
        return {
            "OPENAI_BASE_URL": self.openai_url,
            "OPENAI_API_BASE": self.openai_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": self.base_url,
            "ANTHROPIC_API_KEY": self.api_key,
        }


Run = Callable[[Task, Endpoint, Sandbox | None], Awaitable[Artifacts | None]]
"""An agent program: plays one episode of the task, and returns what the grader gets."""


class NoWorld:
    """What stands where other environments have their class: a program brings its own tools."""

    def reset(self) -> str:
        """Nothing to read: the program asks the policy in its own words."""
        return ""


async def _missing(task: Task, endpoint: Endpoint, sandbox: Sandbox | None) -> Artifacts | None:
    del task, endpoint, sandbox
    raise NotImplementedError("a ProgramSpec needs `run`")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSpec(EnvironmentSpec):
    """An environment whose episodes a program plays."""

    environment: Callable[[], Any] = NoWorld
    run: Run = _missing
    sandbox: SandboxLimits | None = field(default_factory=SandboxLimits)
    """Of the sandbox that the program gets; None: it gets none."""
    timeout_seconds: float = 600.0
    """A program that takes longer has failed."""


async def run_program(spec: ProgramSpec, task: Task, endpoint: Endpoint) -> Artifacts:
    """Let the program play one episode, with a sandbox of its own.

    Args:
        spec: The environment.
        task: The task; its reference is withheld.
        endpoint: The policy.

    Returns:
        What the program returned, for the grader.

    Raises:
        EnvironmentFailure: the program raised, took too long, or returned no dict; or there is no
            sandbox (the cause is a `SandboxError` then).
    """
    sandbox = None
    with boundary(f"{spec.name}: run", spec.timeout_seconds):
        try:
            if spec.sandbox is not None:
                sandbox = await start_sandbox(spec.sandbox, owner=f"{spec.name} {task.id}")
            async with asyncio.timeout(spec.timeout_seconds):
                artifacts = await spec.run(replace(task, reference={}), endpoint, sandbox)
        finally:
            if sandbox is not None:
                await sandbox.stop()
    if artifacts is None:
        return {}
    if not isinstance(artifacts, Mapping):
        kind = type(artifacts).__name__
        raise EnvironmentFailure(f"{spec.name}: run returned {kind}, no dict")
    with boundary(f"{spec.name}: artifacts: JSON"):  # they are recorded
        json.dumps(artifacts)
    return artifacts
