"""Tools that are described by a JSON schema, as methods: signature and docstring as if by hand."""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from envs.messages import JsonValue
from envs.tools import RESERVED_NAMES

_PYTHON_TYPES: Mapping[str, type] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignTool:
    """A tool as another system describes it."""

    name: str
    description: str
    schema: Mapping[str, Any]
    """JSON schema of its arguments, an object."""


def make_methods(tools: Iterable[ForeignTool], own: type) -> dict[str, Callable[..., Any]]:
    """Make the methods of a subclass of `own`; each awaits `self._call(name, arguments)`.

    Args:
        tools: What they stand for.
        own: The class; the names of its own methods are taken.

    Returns:
        Methods by name.

    Raises:
        ValueError: one line: a tool's name is taken, or no policy can write one of its arguments.
    """
    methods = {}
    for tool in tools:
        if tool.name in RESERVED_NAMES or tool.name.startswith("_") or hasattr(own, tool.name):
            raise ValueError(f"no tool may be called {tool.name!r}")
        methods[tool.name] = _make_method(tool)
    return methods


def _make_method(tool: ForeignTool) -> Callable[..., Awaitable[str]]:
    async def method(self: Any, **arguments: JsonValue) -> str:  # noqa: ANN401
        given = {name: value for name, value in arguments.items() if value is not None}
        return await self._call(tool.name, given)

    required = tool.schema.get("required", [])
    properties: Mapping[str, Any] = tool.schema.get("properties", {})
    names = sorted(properties, key=lambda name: name not in required)  # stable: required first
    types = {name: _type_of(f"{tool.name}({name})", properties[name]) for name in names}
    help_lines = [
        f"    {name}: {' '.join(properties[name].get('description', name).split())}"
        for name in names
    ]
    summary = " ".join((tool.description or tool.name).split())
    method.__name__ = tool.name
    method.__doc__ = "\n".join([summary, "", "Args:", *help_lines] if names else [summary])
    method.__annotations__ = {**types, "return": str}
    method.__signature__ = inspect.Signature(  # pyright: ignore[reportFunctionMemberAccess]
        [
            inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            *(
                inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=inspect.Parameter.empty if name in required else None,
                    annotation=types[name],
                )
                for name in names
            ),
        ]
    )
    return method


def _type_of(where: str, schema: Mapping[str, Any]) -> type:
    """The Python type of a parameter's JSON schema; null beside one other type is left out."""
    choices = [choice for choice in schema.get("anyOf", [schema]) if choice.get("type") != "null"]
    kind = choices[0].get("type") if len(choices) == 1 else None
    if kind is None and len(choices) == 1 and "enum" in choices[0]:
        kind = "string"
    if not isinstance(kind, str) or kind not in _PYTHON_TYPES:
        raise ValueError(f"tool {where} has the schema {dict(schema)}: no policy can write it")
    return _PYTHON_TYPES[kind]
