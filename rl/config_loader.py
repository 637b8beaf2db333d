"""From TOML files and overrides to a validated `RunConfig`, with errors that a person can act on.

Takes files left to right, then `section.key=value` overrides; later ones win key by key, lists
replace. Returns a frozen `RunConfig`. Every error is one line: where, what, the bound, the way out.

    configs/quickstart.toml: train.steps = 3: no such key (did you mean run.steps?)
    override: run.steps = 0: must be at least 1
"""

import difflib
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeGuard

from pydantic import BaseModel, ValidationError

from envs.config import EnvironmentConfig
from rl.config import RunConfig

Table = dict[str, object]

_TYPE_NAMES = {
    "int": "a whole number",
    "float": "a number",
    "string": "a string",
    "bool": "true or false",
    "path": "a path (a string)",
    "dict": "a table",
    "model": "a table",
}
_BOUND_WORDS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}


class ConfigError(ValueError):
    """The configuration is not usable; the message is one line that says how to mend it."""


def load_config(
    files: str | Path | Sequence[str | Path], overrides: Sequence[str] = ()
) -> RunConfig:
    """Read, merge and validate a configuration.

    Args:
        files: one or more TOML files (or a run's `config.json`); later ones win.
        overrides: `section.key=value`; the value is a TOML literal, a bare word is a string.

    Raises:
        ConfigError: a file is missing or broken, a key is unknown, a value has the wrong type or is
            out of bounds.
    """
    paths = [Path(files)] if isinstance(files, str | Path) else [Path(file) for file in files]
    if not paths:
        raise ConfigError("no configuration file given: try configs/quickstart.toml")
    merged: Table = {}
    origins: dict[str, str] = {}
    for path in paths:
        _merge(merged, _read_file(path), str(path), origins)
    for override in overrides:
        _merge(merged, _parse_override(override), "override", origins)
    try:
        # Strict JSON: a string is no number and a bool no integer, yet a string is a path.
        return RunConfig.model_validate_json(json.dumps(merged), strict=True)
    except ValidationError as error:
        raise ConfigError(_explain(error, merged, origins, str(paths[-1]))) from None


def _read_file(path: Path) -> Table:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file{_similar_file(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}:{_toml_position(str(error), text)}") from None


def _similar_file(path: Path) -> str:
    names = [file.name for file in path.parent.glob("*.toml")] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1)
    if not close and path.name in _addresses(RunConfig, path.name):
        return f" (an override has a value: {path.name}=...)"
    return f" (did you mean {path.parent / close[0]}?)" if close else ""


def _toml_position(message: str, text: str) -> str:
    """Turn tomllib's `... (at line 3, column 7)` into `3: not TOML: ...`."""
    found = re.search(r" \(at line (\d+), column \d+\)$", message)
    line = int(found[1]) if found else len(text.splitlines())
    return f"{line}: not TOML: {message[: found.start()] if found else message}"


def _parse_override(override: str) -> Table:
    address, separator, text = override.partition("=")
    keys = [key.strip() for key in address.split(".")]
    if not separator or not all(keys):
        raise ConfigError(f"override {override!r}: expected section.key=value")
    value: object = _parse_value(text.strip(), override)
    for key in reversed(keys):
        value = {key: value}
    assert _is_table(value)
    return value


def _parse_value(text: str, override: str) -> object:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError as error:
        if text.startswith(('"', "'", "[", "{")):
            raise ConfigError(f"override {override!r}: not a TOML value: {error}") from None
        return text  # a bare word, such as a path or a name
    if list(parsed) != ["value"]:
        raise ConfigError(f"override {override!r}: more than one value")
    return parsed["value"]


def _is_table(value: object) -> TypeGuard[Table]:
    return isinstance(value, dict)


def _merge(
    target: Table, source: Table, origin: str, origins: dict[str, str], prefix: str = ""
) -> None:
    """Merge `source` into `target` key by key; remember in `origins` who set each address."""
    for key, value in source.items():
        address = f"{prefix}{key}"
        origins[address] = origin
        _refuse_strange_values(value, address, origin)
        held = target.get(key)
        if _is_table(value) and _is_table(held):
            _merge(held, value, origin, origins, f"{address}.")
        elif _is_table(value):
            if held is not None:
                raise ConfigError(f"{origin}: {address} is a value, not a table")
            target[key] = fresh = {}
            _merge(fresh, value, origin, origins, f"{address}.")
        else:
            target[key] = value


def _refuse_strange_values(value: object, address: str, origin: str) -> None:
    """TOML knows dates, infinities and NaN; no key of a run takes one."""
    if isinstance(value, list):
        for item in value:
            _refuse_strange_values(item, address, origin)
    elif not isinstance(value, str | int | float | bool | dict | None):
        raise ConfigError(f"{origin}: {address} = {value}: dates and times are not used here")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{origin}: {address} = {value}: must be a finite number")


def _explain(
    error: ValidationError, merged: Table, origins: Mapping[str, str], last_file: str
) -> str:
    """Turn the first of pydantic's findings into one line, and count the others."""
    findings = error.errors(include_url=False)
    first = findings[0]
    address = ".".join(str(part) for part in first["loc"] if part != "[key]")
    origin = _origin(address, origins, last_file)
    kind, context = first["type"], first.get("ctx", {})
    value = _value_at(merged, address)
    if kind == "extra_forbidden":
        while _is_table(value) and value:  # an unknown section: speak of its first key
            key, value = next(iter(value.items()))
            address = f"{address}.{key}"
        text = f"{origin}: {address}{_shown(value)}: no such key{_suggestion(address)}"
    elif kind == "missing" and "." not in address:
        text = f"{last_file}: the section [{address}] is missing"
    elif kind == "missing":
        text = f"{origin}: {address} is missing: add it, or give {address}=... as an override"
    elif kind == "value_error":
        text = str(context.get("error", first["msg"]))  # a cross-check names its own addresses
    else:
        text = f"{origin}: {address}{_shown(value)}: {_demand(kind, context, first['msg'])}"
    others = len(findings) - 1
    return " ".join(text.split()) + (f" (and {others} more)" if others else "")


def _origin(address: str, origins: Mapping[str, str], last_file: str) -> str:
    """Who set `address`, or the nearest table above it."""
    while address and address not in origins:
        address = address.rpartition(".")[0]
    return origins.get(address, last_file)


def _value_at(table: Table, address: str) -> object:
    value: object = table
    for key in address.split(".") if address else []:
        value = value.get(key) if _is_table(value) else None
    return value


def _shown(value: object) -> str:
    return "" if value is None or _is_table(value) else f" = {json.dumps(value)}"


def _demand(kind: str, context: Mapping[str, object], message: str) -> str:
    """What the value must be, in words."""
    if kind in _BOUND_WORDS:
        words, bound = _BOUND_WORDS[kind]
        return f"must be {words} {context[bound]}"
    name = _TYPE_NAMES.get(kind.partition("_")[0])
    if name and ("type" in kind or "parsing" in kind):
        return f"must be {name}"
    if kind == "too_short":
        return "must have at least one entry"
    if kind == "string_pattern_mismatch":
        return f"must match {context['pattern']}"
    return message


def _suggestion(address: str) -> str:
    """The known address that was probably meant: ` (did you mean run.steps?)`, or nothing."""
    known = list(_addresses(RunConfig, address))
    section, _, key = address.rpartition(".")
    siblings = [name for name in known if name.rpartition(".")[0] == section]
    namesakes = [name for name in known if name.rpartition(".")[2] == key]
    close = difflib.get_close_matches(address, siblings, n=1, cutoff=0.8) or namesakes
    if not close and section and siblings:
        return f" ([{section}] has {', '.join(name.rpartition('.')[2] for name in siblings)})"
    close = close or difflib.get_close_matches(address, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _addresses(section: type[BaseModel], near: str, prefix: str = "") -> Iterator[str]:
    """Every address of a section: tables and keys; environments by the name that `near` uses."""
    for name, field in section.model_fields.items():
        address = f"{prefix}{name}"
        yield address
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _addresses(field.annotation, near, f"{address}.")
        elif address == "environments":
            parts = near.split(".")
            inner = parts[1] if parts[0] == address and len(parts) > 1 else "NAME"
            yield from _addresses(EnvironmentConfig, near, f"{address}.{inner}.")
