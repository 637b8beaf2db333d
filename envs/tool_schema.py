"""From a method's signature and docstring to a tool's schema, and values held against it.

A policy can write texts, numbers, truth values, lists and objects:

    def move(self, piece: Literal["rook", "king"], squares: list[int], speed: float | None = None)

becomes three parameters: a string of two choices, an array of integers, and a number that may be
left out or null.
"""

import inspect
import re
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from envs.messages import JsonValue, ToolParameter, ToolSpec

_JSON_TYPES: Mapping[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
}
_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def describe_method(name: str, method: types.FunctionType) -> ToolSpec:
    """Make a tool's schema from a method: name, signature and Google-style docstring.

    Raises:
        ValueError: a parameter has no type, or one that a policy cannot write.
    """
    docstring = inspect.getdoc(method) or ""
    hints = get_type_hints(method)
    parameters = []
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        where = f"{name}({parameter.name})"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ValueError(f"tool parameter {where} takes any number of arguments: name each")
        hint, is_nullable = _without_none(hints.get(parameter.name))
        kind, item_type, choices = _json_type(where, hint)
        parameters.append(
            ToolParameter(
                name=parameter.name,
                type=kind,
                description=_parameter_help(docstring, parameter.name),
                is_required=parameter.default is inspect.Parameter.empty,
                is_nullable=is_nullable or parameter.default is None,
                item_type=item_type,
                choices=choices,
            )
        )
    description = docstring.partition("\n")[0]
    return ToolSpec(name=name, description=description, parameters=tuple(parameters))


def find_mistake(parameter: ToolParameter, value: JsonValue) -> str | None:
    """Hold a value against a parameter's type.

    Returns:
        What it must be, `count must be integer`, or None where it is that.
    """
    if value is None and parameter.is_nullable:
        return None
    if not _is_of_type(value, parameter.type):
        return f"{parameter.name} must be {parameter.type}"
    if parameter.choices and value not in parameter.choices:
        return f"{parameter.name} must be one of {', '.join(map(str, parameter.choices))}"
    if isinstance(value, list) and parameter.item_type:
        for index, item in enumerate(value):
            if not _is_of_type(item, parameter.item_type):
                return f"{parameter.name}[{index}] must be {parameter.item_type}"
    return None


def _is_of_type(value: JsonValue, name: str) -> bool:
    is_stray_bool = isinstance(value, bool) and name != "boolean"
    return not is_stray_bool and isinstance(value, _PYTHON_TYPES[name])


def _without_none(hint: object) -> tuple[object, bool]:
    """Tell `X | None` from `X`."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint, False
    options = [option for option in get_args(hint) if option is not type(None)]
    is_nullable = len(options) < len(get_args(hint))
    return (options[0] if len(options) == 1 else hint), is_nullable


def _json_type(where: str, hint: object) -> tuple[str, str, tuple[Any, ...]]:
    """Return the JSON type of a hint, of its items, and its choices."""
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        kinds = {_JSON_TYPES.get(type(choice)) for choice in choices}
        if len(kinds) == 1 and None not in kinds:
            return str(kinds.pop()), "", choices
    arguments = get_args(hint)
    kind = _JSON_TYPES.get(get_origin(hint) or hint)
    if kind == "array" and arguments:
        item_type = _JSON_TYPES.get(get_origin(arguments[0]) or arguments[0], "")
        if item_type or arguments[0] is Any:
            return kind, item_type, ()
        kind = None
    if kind is None:
        known = ", ".join(known.__name__ for known in _JSON_TYPES)
        raise ValueError(
            f"tool parameter {where} has type {hint!r}; a policy can write {known}, "
            "lists of these and Literal"
        )
    return kind, "", ()


def _parameter_help(docstring: str, name: str) -> str:
    """Find a parameter's line, and those that go on from it, in the `Args:` section."""
    found = re.search(
        rf"^Args:\n(?:.*\n)*?( +){name}: (.*(?:\n\1 +.*)*)", docstring, flags=re.MULTILINE
    )
    return " ".join(found.group(2).split()) if found else ""
