"""Where tasks come from: an environment, a file, a Python iterable or a dataset; split by hash.

Takes a section of the configuration, returns tasks. A task's split depends on its id alone, so it
is the same in every run, process and version of the list. `envs/task_rows.py` reads the rows.
"""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from envs.config import EnvironmentConfig
from envs.environment import EnvironmentSpec, Split
from envs.messages import JsonValue
from envs.registry import ENTRY_POINTS, load_environment, load_named
from envs.task import Task
from envs.task_rows import hash_fraction, read_tasks, to_task

HELD_OUT_SHARE = 0.2
"""Share of the tasks that never train."""


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
    address = environment.use or name
    spec = load_environment(address)
    tasks = list_tasks(spec, environment.model_copy(update={"use": address}), split)
    source = environment.tasks or f"environment {spec.name!r}"
    if not tasks:
        raise ValueError(f"{source} has no {split} tasks (the split is by hash of the id)")
    _check_unique(source, tasks)
    return tasks


def list_tasks(spec: EnvironmentSpec, environment: EnvironmentConfig, split: Split) -> list[Task]:
    """List the tasks of a section as they are: from where it says, else the environment's own.

    Raises:
        ValueError: one line: the source cannot be read, or the tasks cannot be made.
    """
    address = environment.use or spec.name
    source = environment.tasks or (str(spec.tasks) if isinstance(spec.tasks, Path) else "")
    if source:
        tasks = read_source(source, address, spec.grader)
        return [task for task in tasks if split_of(task.id) is split]
    if not callable(spec.tasks):
        tasks = _to_tasks(f"environment {spec.name!r}", spec.tasks, address, spec.grader)
        return [task for task in tasks if split_of(task.id) is split]
    return make_tasks(spec, split, environment.options)


def make_tasks(
    spec: EnvironmentSpec, split: Split, options: Mapping[str, JsonValue] | None = None
) -> list[Task]:
    """Let an environment make its own tasks.

    Raises:
        ValueError: one line: its generator takes no such option, or it raised.
    """
    options = options or {}
    assert callable(spec.tasks)
    try:
        inspect.signature(spec.tasks).bind(split, **options)
    except TypeError as error:
        raise ValueError(f"environment {spec.name!r}: options: {error}") from None
    try:
        return list(spec.tasks(split, **options))
    except (Exception, SystemExit) as error:  # foreign code: it may raise anything
        line = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"environment {spec.name!r}: its tasks cannot be made: {line}") from error


def read_source(source: str, address: str, grader: str) -> list[Task]:
    """Read the tasks that a section's `tasks` names.

    Args:
        source: A JSONL file; a `.json` or `.parquet` file or a folder, read by `datasets`; or a
            dotted path `package.module:TASKS` to an iterable, or to a function that returns one.
        address: The environment of rows that name none.
        grader: The grader of rows that name none.

    Raises:
        ValueError: one line, `file:number: what is wrong` where there are lines.
    """
    path = Path(source)
    module, colon, _ = source.partition(":")
    if colon and module.replace(".", "").isidentifier() and not path.exists():
        return _to_tasks(source, load_named("task set", ENTRY_POINTS, source), address, grader)
    if path.is_dir() or path.suffix in (".json", ".parquet"):
        return _to_tasks(source, _open_dataset(path), address, grader)
    return read_tasks(path, address, grader)


def _open_dataset(path: Path) -> Iterable[Mapping[str, Any]]:
    """Open a local dataset: a folder that `save_to_disk` wrote, or one file."""
    import datasets

    try:
        if path.is_dir():
            opened = datasets.load_from_disk(str(path))
        else:
            opened = (
                datasets.Dataset.from_parquet(str(path))
                if path.suffix == ".parquet"
                else (datasets.Dataset.from_json(str(path)))
            )
    except Exception as error:  # the library raises errors of its own and of pyarrow
        line = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ValueError(f"{path}: cannot read the tasks: {line}") from error
    if isinstance(opened, datasets.DatasetDict):
        names = ", ".join(map(str, opened))
        raise ValueError(f"{path}: several splits ({names}): name one of them")  # noqa: TRY004
    return cast("Iterable[Mapping[str, Any]]", opened)


def _to_tasks(source: str, rows: object, address: str, grader: str) -> list[Task]:
    """Make tasks of an iterable, or of what a function returns."""
    tasks: list[Task] = []
    try:
        made = iter(cast("Iterable[object]", rows() if callable(rows) else rows))
        for number, row in enumerate(made):
            tasks.append(_to_task(f"{source}: row {number}", row, address, grader))
    except ValueError:
        raise
    except (Exception, SystemExit) as error:  # foreign code: it may raise anything
        line = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"{source}: its tasks cannot be made: {line}") from error
    if not tasks:
        raise ValueError(f"{source}: no task: name some with `tasks`")
    _check_unique(source, tasks)
    return tasks


def _to_task(where: str, row: object, address: str, grader: str) -> Task:
    try:
        return to_task(row, address, grader)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _check_unique(source: str, tasks: Sequence[Task]) -> None:
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise ValueError(f"{source}: task id {task.id!r} is given twice")
        seen.add(task.id)
