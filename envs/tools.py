"""Tools: from a method's signature and docstring to a schema, and from a call to a reply.

Takes an environment and a policy's call, returns the reply's text. What the policy did wrong comes
back as a text that begins with `error:`; what the environment did wrong is `EnvironmentFailure`.
"""

import asyncio
import inspect
import json
import re
import types
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from envs.environment import EnvironmentFailure, ToolError, boundary
from envs.messages import JsonValue, ToolCall, ToolParameter, ToolSpec

__all__ = ["ToolError", "call_tool", "parse_arguments", "tool_specs"]

RESERVED_NAMES = frozenset(
    ("reset", "done", "artifacts", "close", "step", "reward", "get_reward", "snapshot", "restore")
)
"""Methods for the trainer's side of an environment: never tools."""

_JSON_TYPES: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
}
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


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
    if not isinstance(reply, str):
        name = f"{type(environment).__name__}.{call.name}"
        raise EnvironmentFailure(f"{name} returned {type(reply).__name__}, not text")
    if len(reply) > max_characters:
        reply = f"{reply[:max_characters]}\n(cut: {len(reply)} characters)"
    return reply


@cache  # signatures and docstrings are read once per class, not at every call of a tool
def _specs_of(kind: type) -> tuple[ToolSpec, ...]:
    names: dict[str, None] = {}
    for base in reversed(kind.__mro__[:-1]):
        names.update(dict.fromkeys(vars(base)))
    return tuple(
        _describe(name, getattr(kind, name))
        for name in names
        if not name.startswith("_")
        and name not in RESERVED_NAMES
        and inspect.isfunction(getattr(kind, name))
    )


def _check_call(specs: Sequence[ToolSpec], call: ToolCall) -> None:
    """Raise `ToolError` where no tool fits the call."""
    tools = {spec.name: spec for spec in specs}
    if call.name not in tools:
        raise ToolError(f"no tool {call.name[:40]!r}; there are: {', '.join(tools)}")
    _validate(tools[call.name], call.arguments)


async def _run(environment: object, call: ToolCall, timeout_seconds: float) -> object:
    """Run a validated call: an async method here, a sync one in a thread."""
    method = getattr(environment, call.name)
    work = (
        method(**call.arguments)
        if inspect.iscoroutinefunction(method)
        else asyncio.to_thread(_call_in_thread, method, call.arguments)
    )
    try:
        async with asyncio.timeout(timeout_seconds):
            return await _guard(f"{type(environment).__name__}.{call.name}", work)
    except TimeoutError:  # ours: the guard turns one of the tool's own into a failure
        raise ToolError(f"{call.name} took longer than {timeout_seconds:g} s") from None


def _call_in_thread(method: Callable[..., object], arguments: Mapping[str, JsonValue]) -> object:
    """Call a sync tool. A StopIteration cannot leave a thread: nobody would hear of its end."""
    try:
        return method(**arguments)
    except StopIteration as error:
        raise RuntimeError("StopIteration left the tool") from error


async def _guard(where: str, work: Awaitable[object]) -> object:
    """Await foreign code; only `ToolError` passes, all else is the environment's failure."""
    with boundary(where):
        try:
            return await work
        except ToolError as error:
            refusal = error
    raise refusal


def _describe(name: str, method: types.FunctionType) -> ToolSpec:
    """Make a spec from a method: its name, its signature and its Google-style docstring."""
    docstring = inspect.getdoc(method) or ""
    hints = get_type_hints(method)
    parameters = [
        ToolParameter(
            name=parameter.name,
            type=_json_type(f"{name}({parameter.name})", hints.get(parameter.name)),
            description=_parameter_help(docstring, parameter.name),
            is_required=parameter.default is inspect.Parameter.empty,
        )
        for parameter in list(inspect.signature(method).parameters.values())[1:]
    ]
    description = docstring.partition("\n")[0]
    return ToolSpec(name=name, description=description, parameters=tuple(parameters))


def _json_type(where: str, hint: object) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        options = [option for option in get_args(hint) if option is not type(None)]
        hint = options[0] if len(options) == 1 else hint
    kind = _JSON_TYPES.get(get_origin(hint) or hint)
    if kind is None:
        known = ", ".join(known.__name__ for known in _JSON_TYPES)
        raise ValueError(f"tool parameter {where} has type {hint!r}; a policy can write {known}")
    return kind


def _parameter_help(docstring: str, name: str) -> str:
    """Find a parameter's line, and those that go on from it, in the `Args:` section."""
    found = re.search(
        rf"^Args:\n(?:.*\n)*?( +){name}: (.*(?:\n\1 +.*)*)", docstring, flags=re.MULTILINE
    )
    return " ".join(found.group(2).split()) if found else ""


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
        value = arguments[name]
        if value is None and not parameter.is_required:
            continue
        is_bool = isinstance(value, bool) and parameter.type != "boolean"
        if is_bool or not isinstance(value, _PYTHON_TYPES[parameter.type]):
            raise ToolError(f"{name} must be {parameter.type}")


def _usage(spec: ToolSpec) -> str:
    return f"{spec.name}({', '.join(parameter.name for parameter in spec.parameters)})"
