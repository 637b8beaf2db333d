"""What an environment is: a plain class whose public methods are the policy's tools.

No base class is needed. The class may have these methods, sync or async:

    reset(**task.data) -> str       the opening: what the policy reads first (required)
    any other public method -> str  a tool; name, parameters and help come from its signature
    done() -> bool                  whether the episode has ended
    artifacts() -> dict             what the grader gets to see: a submitted answer, a file
    close()                         frees what `reset` took

The functions below are how an agent loop drives one. Whatever the environment's code raises comes
out as `EnvironmentFailure`: such an episode gets an Invalid outcome, never the reward 0.
"""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from envs.messages import JsonValue, Message
from envs.task import Task


class Split(StrEnum):
    """Which part of the tasks: the two share no task."""

    TRAIN = "train"
    HELD_OUT = "held_out"


class EnvironmentFailure(Exception):  # noqa: N818 (an outcome upstream, not a bug)
    """The environment or its sandbox broke: it says nothing about the policy."""


class ToolError(Exception):
    """A tool cannot do what the policy asks: the text is the tool's reply."""


Expert = Callable[[Sequence[Message]], Message]
"""A scripted policy: the messages so far to the next policy message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """All that belongs to an environment: what an entry point or a dotted path leads to."""

    name: str
    environment: Callable[[], Any]
    """The class; it is made anew for every episode, without arguments."""
    tasks: Callable[..., Sequence[Task]]
    """Called as `tasks(split, **options)`."""
    expert: Callable[..., Expert] | None = None
    """Called as `expert(task, random)`: a scripted policy for one episode of the task. It may fail
    at times; `limosa check` asks that it solves each task sooner or later."""


async def start_episode(spec: EnvironmentSpec, task: Task) -> tuple[Any, str]:
    """Make an environment and set its task.

    Returns:
        The environment, and the opening text.

    Raises:
        EnvironmentFailure: the class or its `reset` raised, or the opening is no text.
    """
    with boundary(f"{spec.name}: reset"):
        environment = spec.environment()
        opening = await _resolve(environment.reset(**task.data))
    if not isinstance(opening, str):
        raise EnvironmentFailure(f"{spec.name}: reset returned {type(opening).__name__}, not text")
    return environment, opening


async def is_done(environment: object) -> bool:
    """Ask the environment whether its episode has ended; False where it has no `done`.

    Raises:
        EnvironmentFailure: `done` raised.
    """
    return bool(await _call_hook(environment, "done", default=False))


async def collect_artifacts(environment: object) -> Mapping[str, JsonValue]:
    """Ask the environment for what the grader gets; empty where it has no `artifacts`.

    Raises:
        EnvironmentFailure: `artifacts` raised, or returned no dict, or one that is not JSON.
    """
    artifacts = await _call_hook(environment, "artifacts", default={})
    if not isinstance(artifacts, Mapping):
        name = type(environment).__name__
        raise EnvironmentFailure(f"{name}.artifacts returned {type(artifacts).__name__}, no dict")
    with boundary(f"{type(environment).__name__}.artifacts: JSON"):  # they are recorded
        json.dumps(artifacts)
    return artifacts


async def end_episode(environment: object) -> None:
    """Let the environment free what it holds.

    Raises:
        EnvironmentFailure: `close` raised.
    """
    await _call_hook(environment, "close", default=None)


@contextmanager
def boundary(where: str) -> Iterator[None]:
    """Turn whatever foreign code raises inside into an `EnvironmentFailure` of one line."""
    try:
        yield
    except EnvironmentFailure:
        raise
    except (Exception, SystemExit) as error:  # `sys.exit()` ends an episode, not the engine
        line = " ".join(f"{type(error).__name__}: {error}".split())
        raise EnvironmentFailure(f"{where} raised {line[:300]}") from error


async def _call_hook(environment: object, name: str, default: object) -> object:
    hook = getattr(environment, name, None)
    if hook is None:
        return default
    with boundary(f"{type(environment).__name__}.{name}"):
        return await _resolve(hook())


async def _resolve(value: object) -> object:
    """Await what an async method returned; pass on what a sync one did."""
    return await value if inspect.isawaitable(value) else value
