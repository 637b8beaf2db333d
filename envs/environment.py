"""What an environment is: a plain class whose public methods are the policy's tools.

No base class is needed. The class may have these methods, sync or async:

    reset(**task.data) -> str       the opening: what the policy reads first (required); where it
                                    has a parameter `seed`, it gets the task's
    any other public method -> str  a tool; name, parameters and help come from its signature
    step(text) -> str               answers the policy's plain text: games, simulated users
    done() -> bool                  whether the episode has ended
    artifacts() -> dict             what the grader gets to see: a submitted answer, a file
    reward() -> float               what the episode earned, in [0, 1]: it needs no grader then
    snapshot() -> JSON, restore(state)   the state of a running episode, and back to it
    close()                         frees what `reset` took

A class written for TRL's `environment_factory` is one of these: it has `get_reward` for `reward`,
and by that name its other conventions hold too (`is_trl_class`).

The functions below are how an agent loop drives one. Whatever the environment's code raises comes
out as `EnvironmentFailure`: such an episode gets an Invalid outcome, never the reward 0.
"""

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, cast

from envs.foreign_code import call_foreign
from envs.messages import JsonValue, Message
from envs.task import Task

OWN_REWARD = "rewards.own_reward:grade"
"""The grader of a class that has a reward of its own."""
RESET_TIMEOUT_SECONDS = 120.0
"""An environment that takes longer to begin has failed."""
HOOK_TIMEOUT_SECONDS = 60.0
"""So has one that takes longer to say whether it is done, or to close."""


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
    tasks: Callable[..., Sequence[Task]] | Iterable[Task | Mapping[str, Any]] | Path
    """A function, called as `tasks(split, **options)`; or a file, tasks, or rows of them
    (`envs.task_rows`), which are then split by the hash of their ids."""
    grader: str = OWN_REWARD
    """Name of the grader of rows that name none."""
    expert: Callable[..., Expert] | None = None
    """Called as `expert(task, random)`: a scripted policy for one episode of the task. It may fail
    at times; `limosa check` asks that it solves each task sooner or later."""


async def start_episode(
    spec: EnvironmentSpec, task: Task, timeout_seconds: float = RESET_TIMEOUT_SECONDS
) -> tuple[Any, str]:
    """Make an environment and set its task.

    Returns:
        The environment, and the opening text.

    Raises:
        EnvironmentFailure: the class or its `reset` raised or took longer, or the opening is no
            text.
    """
    made: list[Any] = []

    def make_and_reset() -> object:
        environment = spec.environment()
        made.append(environment)
        return environment.reset(**_reset_arguments(environment, task))

    with boundary(f"{spec.name}: reset", timeout_seconds):
        returned = await call_foreign(make_and_reset, timeout_seconds=timeout_seconds)
    (environment,) = made
    opening = _opening(environment, task.data, returned)
    if not isinstance(opening, str):
        raise EnvironmentFailure(f"{spec.name}: reset returned {type(opening).__name__}, not text")
    return environment, valid_text(opening)


def is_trl_class(environment: object) -> bool:
    """Whether a class, or an instance, is written for TRL's `environment_factory`.

    There the column `prompt` comes before what `reset` returns, which may be None; and what a tool
    raises is told to the policy.
    """
    return callable(getattr(environment, "get_reward", None))


def takes_text(environment: object) -> bool:
    """Whether a class, or an instance, answers plain text of the policy (`step`)."""
    return callable(getattr(environment, "step", None))


async def answer_text(environment: object, text: str, max_characters: int = 2000) -> str:
    """Give the policy's plain text to `step`, and return its reply, cut like a tool's.

    Raises:
        EnvironmentFailure: `step` raised, or returned no text.
    """
    reply = await _call_hook(environment, "step", default=None, arguments=(text,))
    if not isinstance(reply, str):
        name = type(environment).__name__
        raise EnvironmentFailure(f"{name}.step returned {type(reply).__name__}, not text")
    return cut_reply(reply, max_characters)


async def is_done(environment: object) -> bool:
    """Ask the environment whether its episode has ended; False where it has no `done`.

    Raises:
        EnvironmentFailure: `done` raised.
    """
    return bool(await _call_hook(environment, "done", default=False))


async def collect_artifacts(environment: object) -> Mapping[str, JsonValue]:
    """Ask the environment for what the grader gets; empty where it has no `artifacts`.

    A reward of its own (`reward` or `get_reward`) is the artifact `reward`.

    Raises:
        EnvironmentFailure: `artifacts` raised, or returned no dict, or one that is not JSON.
    """
    name = type(environment).__name__
    artifacts = await _call_hook(environment, "artifacts", default={})
    if not isinstance(artifacts, Mapping):
        raise EnvironmentFailure(f"{name}.artifacts returned {type(artifacts).__name__}, no dict")
    for hook in ("reward", "get_reward"):
        if callable(getattr(environment, hook, None)):
            artifacts = {**artifacts, "reward": await _call_hook(environment, hook, default=None)}
            break
    with boundary(f"{name}.artifacts: JSON"):  # they are recorded
        json.dumps(artifacts)
    return artifacts


async def take_snapshot(environment: object) -> JsonValue:
    """Ask the environment for the state of its episode.

    Raises:
        EnvironmentFailure: `snapshot` raised, or its state is not JSON.
    """
    state = await _call_hook(environment, "snapshot", default=None)
    with boundary(f"{type(environment).__name__}.snapshot: JSON"):
        json.dumps(state)
    return cast("JsonValue", state)


async def restore_snapshot(environment: object, state: JsonValue) -> None:
    """Put an environment that was reset to the same task into a state that `snapshot` gave.

    Raises:
        EnvironmentFailure: `restore` raised.
    """
    await _call_hook(environment, "restore", default=None, arguments=(state,))


async def end_episode(environment: object) -> None:
    """Let the environment free what it holds.

    Raises:
        EnvironmentFailure: `close` raised.
    """
    await _call_hook(environment, "close", default=None)


def cut_reply(reply: str, max_characters: int) -> str:
    """Make valid text of bounded length out of a reply; it says so where it is cut."""
    kept = valid_text(reply[:max_characters])
    if len(reply) > max_characters:
        return f"{kept}\n(cut: {len(reply)} characters)"
    return kept


def valid_text(text: str) -> str:
    """Replace by `?` what no UTF-8 text can hold: halves of bytes that were decoded carelessly."""
    return text if text.isascii() else text.encode("utf-8", errors="replace").decode("utf-8")


@contextmanager
def boundary(where: str, timeout_seconds: float | None = None) -> Iterator[None]:
    """Turn whatever foreign code raises inside into an `EnvironmentFailure` of one line."""
    try:
        yield
    except EnvironmentFailure:
        raise
    except (Exception, SystemExit) as error:  # `sys.exit()` ends an episode, not the engine
        if isinstance(error, TimeoutError) and timeout_seconds is not None and not str(error):
            line = f"{where} took longer than {timeout_seconds:g} s"
            raise EnvironmentFailure(line) from error
        line = " ".join(f"{type(error).__name__}: {error}".split())
        raise EnvironmentFailure(f"{where} raised {line[:300]}") from error


def _reset_arguments(environment: Any, task: Task) -> dict[str, JsonValue]:  # noqa: ANN401
    """The task's data, and its seed where `reset` asks for one by name."""
    arguments = dict(task.data)
    if "seed" in inspect.signature(environment.reset).parameters:
        arguments.setdefault("seed", task.seed)
    return arguments


def _opening(environment: object, data: Mapping[str, JsonValue], returned: object) -> object:
    """Put a prompt of the task before what `reset` returned, where TRL would."""
    prompt = data.get("prompt")
    is_chat = isinstance(prompt, list)
    if prompt is None or not (is_chat or is_trl_class(environment)):
        return returned
    messages = prompt if is_chat else [prompt]
    texts = [part["content"] if isinstance(part, dict) else part for part in messages]
    if returned is not None:
        texts.append(returned)  # pyright: ignore[reportArgumentType]  checked by the next line
    return "\n".join(map(str, texts))


async def _call_hook(
    environment: object, name: str, default: object, arguments: tuple[object, ...] = ()
) -> object:
    hook = getattr(environment, name, None)
    if hook is None:
        return default
    with boundary(f"{type(environment).__name__}.{name}", HOOK_TIMEOUT_SECONDS):
        call = hook if not arguments else partial(hook, *arguments)
        return await call_foreign(call, timeout_seconds=HOOK_TIMEOUT_SECONDS)
