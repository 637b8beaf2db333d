"""From a row of a file, a list or a dataset to a task.

A row is a task in full, with the fields of `Task`, of which `environment` and `grader` may be left
to the section; or it is bare, and then its columns are what `reset` gets:

    {"id": "guess/7", "data": {"secret": 7}, "reference": {"secret": 7}}
    {"id": "guess/7", "secret": 7}

A bare row without an id gets one from its content: a stable key, wherever the row stands.
"""

import dataclasses
import difflib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envs.task import Task

_FIELDS = tuple(field.name for field in dataclasses.fields(Task))
_OF_FULL_ROWS = frozenset(_FIELDS) - {"id", "seed"}
_MAX_SEED = 2**31


def hash_fraction(text: str) -> float:
    """Map a text to a number in [0, 1), the same in every process."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def read_tasks(path: Path, environment: str = "", grader: str = "") -> list[Task]:
    """Read tasks from a JSONL file: one row per line.

    Args:
        path: The file.
        environment: Of rows that name none.
        grader: Of rows that name none.

    Raises:
        ValueError: one line, `file:number: what is wrong`; no task of the file is used then.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot read the tasks: {_why(path, error)}") from None
    tasks: list[Task] = []
    numbers: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            task = to_task(_parse_line(line), environment, grader)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from None
        if task.id in numbers:
            twice = f"task id {task.id!r} is given twice, first in line {numbers[task.id]}"
            raise ValueError(f"{path}:{number}: {twice}")
        numbers[task.id] = number
        tasks.append(task)
    if not tasks:
        raise ValueError(f"{path}: no task in the file")
    return tasks


def to_task(row: object, environment: str, grader: str) -> Task:
    """Make a task of a row; a task is passed on.

    Args:
        row: A mapping, or a `Task`.
        environment: Of rows that name none.
        grader: Of rows that name none.

    Raises:
        ValueError: one line that says what is wrong with the row.
    """
    if isinstance(row, Task):
        return row
    if not isinstance(row, Mapping):
        raise ValueError("not a JSON object")  # noqa: TRY004
    record = dict(row)
    if not _OF_FULL_ROWS & record.keys():
        record = _fill_bare_row(record, environment)
    for name in record:
        if name not in _FIELDS:
            close = difflib.get_close_matches(str(name), _FIELDS, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else f"; known: {', '.join(_FIELDS)}"
            raise ValueError(f"unknown field {name!r}{hint}")
    for name, default in (("environment", environment), ("grader", grader)):
        record[name] = record.get(name, default or None)
    _check_types(record)
    record.setdefault("seed", int(hash_fraction(record["id"]) * _MAX_SEED))
    return Task(**record)


def _fill_bare_row(columns: Mapping[str, Any], environment: str) -> dict[str, Any]:
    """Make a full row: all columns but `id` and `seed` are data."""
    data = {name: value for name, value in columns.items() if name not in ("id", "seed")}
    record = {name: columns[name] for name in ("id", "seed") if name in columns}
    if "id" not in record:
        try:
            text = json.dumps(data, sort_keys=True)
        except TypeError as error:
            raise ValueError(f"a column is not JSON: {error}") from None
        digest = hashlib.sha256(text.encode("utf-8")).hexdigest()
        record["id"] = f"{environment.rpartition(':')[2] or 'task'}/{digest[:12]}"
    return record | {"data": data}


def _check_types(record: Mapping[str, Any]) -> None:
    # Whatever is wrong here is what a user wrote: ValueError, also where it is of another type.
    for name in ("id", "environment", "grader"):
        if not isinstance(record.get(name), str):
            raise ValueError(f"field {name!r} is missing or no text")  # noqa: TRY004
    for name in ("data", "reference"):
        if not isinstance(record.get(name, {}), dict):
            raise ValueError(f"field {name!r} is no JSON object")  # noqa: TRY004
    seed = record.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise ValueError("field 'seed' is no integer")  # noqa: TRY004


def _parse_line(line: str) -> object:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error.msg} at column {error.colno})") from None
    except RecursionError:
        raise ValueError("not valid JSON (nested too deeply)") from None


def _why(path: Path, error: OSError | UnicodeDecodeError) -> str:
    if isinstance(error, OSError):
        return str(error.strerror)
    number = path.read_bytes()[: error.start].count(b"\n") + 1
    return f"line {number} is not UTF-8 text"
