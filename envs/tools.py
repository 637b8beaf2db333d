"""Tools: the public methods of an environment, and from a call of one to a reply.

Takes an environment and a policy's call, returns the reply's text. What the policy did wrong comes
back as a text that begins with `error:`; what the environment did wrong is `EnvironmentFailure`.
"""

import asyncio
import inspect
import json
from collections.abc import Mapping, Sequence
from functools import cache

from envs.environment import (
    EnvironmentFailure,
    ToolError,
    boundary,
    cut_reply,
    is_trl_class,
)
from envs.foreign_code import call_foreign
from envs.messages import JsonValue, ToolCall, ToolSpec
from envs.tool_schema import describe_method, find_mistake

__all__ = ["ToolError", "call_tool", "parse_arguments", "tool_specs"]

RESERVED_NAMES = frozenset(
    ("reset", "done", "artifacts", "close", "step", "reward", "get_reward", "snapshot", "restore")
)
"""Methods for the trainer's side of an environment: never tools."""


def tool_specs(environment: object) -> tuple[ToolSpec, ...]:
    """Describe the tools of an environment: its public methods, in the order they are written.

    Args:
        environment: The class, or an instance of it.

    Returns:
        One spec per tool, its parameters in the order of the signature.

    Raises:
        ValueError: a parameter has no type, or one that a policy cannot write.
    """
    return _specs_of(environment if isinstance(environment, type) else type(environment))


def parse_arguments(spec: ToolSpec, texts: Sequence[str]) -> dict[str, JsonValue]:
    """Type the arguments that a policy wrote by position.

    Worked example: for `open(hit: int)`, `parse_arguments(spec, ["1"])` gives `{"hit": 1}`.

    Args:
        spec: The tool.
        texts: The arguments in the order of the parameters; trailing optional ones may be missing.
            Strings are taken as they are, all other types as JSON.

    Returns:
        Arguments by name.

    Raises:
        ToolError: too many or too few arguments, or one that is not of its type.
    """
    if len(texts) > len(spec.parameters):
        raise ToolError(f"{_usage(spec)} takes {len(spec.parameters)} arguments, not {len(texts)}")
    arguments: dict[str, JsonValue] = {}
    for parameter, text in zip(spec.parameters, texts, strict=False):
        if parameter.type == "string":
            arguments[parameter.name] = text
            continue
        try:
            arguments[parameter.name] = json.loads(text)
        except (ValueError, RecursionError):
            raise ToolError(f"{parameter.name} must be {parameter.type}") from None
    _validate(spec, arguments)
    return arguments


async def call_tool(
    environment: object, call: ToolCall, timeout_seconds: float = 10.0, max_characters: int = 2000
) -> str:
    """Run one tool call.

    Args:
        environment: The live environment.
        call: What the policy asks for.
        timeout_seconds: A tool that takes longer is answered with an error. A sync method cannot
            be stopped: its thread goes on, its result is dropped.
        max_characters: A longer reply is cut, and says so.

    Returns:
        The reply for the policy; it begins with `error:` where the call cannot be carried out.

    Raises:
        EnvironmentFailure: the tool raised anything but `ToolError`, or returned no text.
    """
    try:
        _check_call(tool_specs(environment), call)
        reply = await _run(environment, call, timeout_seconds)
    except ToolError as error:
        reply = f"error: {error}"
    if is_trl_class(environment) and not isinstance(reply, str):
        reply = str(reply)
    if not isinstance(reply, str):
        name = f"{type(environment).__name__}.{call.name}"
        raise EnvironmentFailure(f"{name} returned {type(reply).__name__}, not text")
    return cut_reply(reply, max_characters)


@cache  # signatures and docstrings are read once per class, not at every call of a tool
def _specs_of(kind: type) -> tuple[ToolSpec, ...]:
    names: dict[str, None] = {}
    for base in reversed(kind.__mro__[:-1]):
        names.update(dict.fromkeys(vars(base)))
    return tuple(
        describe_method(name, getattr(kind, name))
        for name in names
        if not name.startswith("_")
        and name not in RESERVED_NAMES
        and inspect.isfunction(inspect.getattr_static(kind, name))
    )


def _check_call(specs: Sequence[ToolSpec], call: ToolCall) -> None:
    """Raise `ToolError` where no tool fits the call."""
    tools = {spec.name: spec for spec in specs}
    if call.name not in tools:
        raise ToolError(f"no tool {call.name[:40]!r}; there are: {', '.join(tools)}")
    _validate(tools[call.name], call.arguments)


async def _run(environment: object, call: ToolCall, timeout_seconds: float) -> object:
    """Run a validated call: an async method here, a sync one in a thread.

    Raises:
        ToolError: the tool refused, or took too long.
        EnvironmentFailure: it raised anything else.
    """
    method = getattr(environment, call.name)
    where = f"{type(environment).__name__}.{call.name}"
    is_any_error_a_reply = is_trl_class(environment)
    limit = asyncio.timeout(timeout_seconds)
    with boundary(where):
        try:
            async with limit:
                try:
                    return await call_foreign(method, call.arguments)
                except ToolError as error:
                    refusal = error
                except EnvironmentFailure:
                    raise
                except Exception as error:
                    if not is_any_error_a_reply:
                        raise
                    refusal = ToolError(" ".join(str(error).split()) or type(error).__name__)
        except TimeoutError:
            if not limit.expired():  # the tool's own
                raise
            refusal = ToolError(f"{call.name} took longer than {timeout_seconds:g} s")
    raise refusal


def _validate(spec: ToolSpec, arguments: Mapping[str, JsonValue]) -> None:
    """Raise `ToolError` where arguments are missing, unknown or of another type."""
    parameters = {parameter.name: parameter for parameter in spec.parameters}
    for name in arguments:
        if name not in parameters:
            raise ToolError(f"{_usage(spec)} has no argument {name[:40]!r}")
    for name, parameter in parameters.items():
        if name not in arguments:
            if parameter.is_required:
                raise ToolError(f"{_usage(spec)} needs {name}")
            continue
        mistake = find_mistake(parameter, arguments[name])
        if mistake is not None:
            raise ToolError(mistake)


def _usage(spec: ToolSpec) -> str:
    return f"{spec.name}({', '.join(parameter.name for parameter in spec.parameters)})"
