"""Where tasks come from: an environment's own generator or a JSONL file, split by hash.

Takes a section of the configuration, returns tasks. A task's split depends on its id alone, so it
is the same in every run, process and version of the list.
"""

import dataclasses
import difflib
import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.config import EnvironmentConfig
from envs.environment import EnvironmentSpec, Split
from envs.messages import JsonValue
from envs.registry import load_environment
from envs.task import Task

HELD_OUT_SHARE = 0.2
"""Share of the tasks that never train."""


def hash_fraction(text: str) -> float:
    """Map a text to a number in [0, 1), the same in every process."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def split_of(task_id: str) -> Split:
    """Tell which split a task belongs to, from its id alone."""
    return Split.HELD_OUT if hash_fraction(task_id) < HELD_OUT_SHARE else Split.TRAIN


def load_tasks(name: str, environment: EnvironmentConfig, split: Split) -> list[Task]:
    """Load the tasks of one environment of a run.

    Args:
        name: The section's key.
        environment: The section.
        split: Which part of the tasks.

    Returns:
        Tasks in a fixed order; their ids are unique.

    Raises:
        ValueError: one line that says what is wrong: an unknown environment or option, a missing
            file, a broken line, an id given twice, or a split without tasks.
    """
    spec = load_environment(environment.use or name)
    tasks = list_tasks(spec, environment, split)
    source = environment.tasks or f"environment {spec.name!r}"
    if not tasks:
        raise ValueError(f"{source} has no {split} tasks (the split is by hash of the id)")
    _check_unique(source, tasks)
    return tasks


def list_tasks(spec: EnvironmentSpec, environment: EnvironmentConfig, split: Split) -> list[Task]:
    """List the tasks of a section as they are: from its file where it names one, else made.

    Raises:
        ValueError: one line: the file cannot be read, or the tasks cannot be made.
    """
    if environment.tasks:
        return [task for task in read_tasks(Path(environment.tasks)) if split_of(task.id) is split]
    return make_tasks(spec, split, environment.options)


def make_tasks(
    spec: EnvironmentSpec, split: Split, options: Mapping[str, JsonValue] | None = None
) -> list[Task]:
    """Let an environment make its own tasks.

    Raises:
        ValueError: one line: its generator takes no such option, or it raised.
    """
    options = options or {}
    try:
        inspect.signature(spec.tasks).bind(split, **options)
    except TypeError as error:
        raise ValueError(f"environment {spec.name!r}: options: {error}") from None
    try:
        return list(spec.tasks(split, **options))
    except (Exception, SystemExit) as error:  # foreign code: it may raise anything
        line = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"environment {spec.name!r}: its tasks cannot be made: {line}") from error


def read_tasks(path: Path) -> list[Task]:
    """Read tasks from a JSONL file: one JSON object per line, with the fields of `Task`.

    Raises:
        ValueError: one line, `file:number: what is wrong`.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ValueError(f"{path}: cannot read the tasks: {reason}") from None
    tasks = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            tasks.append(_parse_task(line))
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from None
    if not tasks:
        raise ValueError(f"{path}: no task in the file")
    _check_unique(str(path), tasks)
    return tasks


def _parse_task(line: str) -> Task:
    # Whatever is wrong here is what a user wrote: ValueError, also where it is of another type.
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error.msg} at column {error.colno})") from None
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004
    fields = {field.name: field for field in dataclasses.fields(Task)}
    for name in record:
        if name not in fields:
            close = difflib.get_close_matches(name, fields, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else f"; known: {', '.join(fields)}"
            raise ValueError(f"unknown field {name!r}{hint}")
    for name in ("id", "environment", "grader"):
        if not isinstance(record.get(name), str):
            raise ValueError(f"field {name!r} is missing or no text")  # noqa: TRY004
    _check_types(record)
    return Task(**record)


def _check_types(record: dict[str, Any]) -> None:
    for name in ("data", "reference"):
        if not isinstance(record.get(name, {}), dict):
            raise ValueError(f"field {name!r} is no JSON object")  # noqa: TRY004
    seed = record.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise ValueError("field 'seed' is no integer")  # noqa: TRY004


def _check_unique(source: str, tasks: Sequence[Task]) -> None:
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise ValueError(f"{source}: task id {task.id!r} is given twice")
        seen.add(task.id)
