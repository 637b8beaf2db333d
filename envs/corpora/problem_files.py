"""Programming problems as packages ship them: the CodeI/O records and HumanEval.

Takes nothing, returns `RawProblem`s: a text, a reference solution, and how to get inputs. The data
files of the packages are read where they are installed; neither package is imported, because each
loads far more than its data. `pip install limosa[tasks]` installs both.
"""

import ast
import gzip
import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envs.messages import JsonValue
from envs.task_sets import hash_fraction

HOW_TO_INSTALL = "is not installed: pip install limosa[tasks]"
GENERATE = "generate_inputs"
"""Name of the function that a generator defines; it takes a `random.Random`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawProblem:
    """A problem before it is known to be usable."""

    key: str
    """Unique and stable: `codeio-17`."""
    description: str
    function: str
    """Name of what is to be written."""
    parameters: tuple[str, ...]
    solution: str
    """Text of a module that defines the function."""
    generator: str = ""
    """Text that defines `GENERATE`, or nothing."""
    inputs: tuple[dict[str, JsonValue], ...] = field(default=())
    """Arguments by name, where there is no generator."""


def read_codeio(limit: int) -> Iterator[RawProblem]:
    """Read the CodeI/O records in reasoning-gym: real functions with generators of inputs.

    Args:
        limit: Records, those that come first in an order by hash; 0 is all.

    Raises:
        ValueError: one line: the package is not installed, or its data cannot be read.
    """
    path = find_data_file("reasoning_gym", "data/codeio.jsonl.gz", "reasoning-gym")
    for key, record in _choose(path, "codeio", limit):
        solution = record["code_sample"]
        parameters = find_parameters(solution, "main_solution")
        if parameters is not None:
            yield RawProblem(
                key=key,
                description=f"{record['task_description']}\n\n{record['input_output_spec']}",
                function="main_solution",
                parameters=parameters,
                solution=solution,
                generator=f"import random\nfrom random import Random\n{record['input_generator']}",
            )


def read_human_eval(limit: int) -> Iterator[RawProblem]:
    """Read HumanEval: functions from a docstring, with the inputs that its tests call them with.

    Args:
        limit: Records, those that come first in an order by hash; 0 is all.

    Raises:
        ValueError: one line: the package is not installed, or its data cannot be read.
    """
    path = find_data_file("human_eval", "data/HumanEval.jsonl.gz", "human-eval")
    for key, record in _choose(path, "human-eval", limit):
        solution = record["prompt"] + record["canonical_solution"]
        function = record["entry_point"]
        parameters = find_parameters(solution, function)
        if parameters is not None:
            yield RawProblem(
                key=key,
                description=_find_docstring(solution, function),
                function=function,
                parameters=parameters,
                solution=solution,
                inputs=tuple(_list_inputs(record["test"], parameters)),
            )


READERS = {"codeio": read_codeio, "human_eval": read_human_eval}
"""Name of a problem set: what reads it."""


def find_data_file(package: str, path: str, distribution: str) -> Path:
    """Find a file of an installed package without importing it.

    Raises:
        ValueError: one line: the package or the file is not there.
    """
    spec = importlib.util.find_spec(package)
    folders = (spec.submodule_search_locations if spec else None) or ()
    for folder in folders:
        if (found := Path(folder) / path).is_file():
            return found
    raise ValueError(f"{distribution} {HOW_TO_INSTALL}")


def find_parameters(source: str, function: str) -> tuple[str, ...] | None:
    """Find a function's parameters; None where there is no such function, or one with `*args`."""
    definition = _find_definition(source, function)
    if definition is None or definition.args.vararg or definition.args.kwarg:
        return None
    arguments = definition.args
    if arguments.posonlyargs:
        return None
    return tuple(argument.arg for argument in (*arguments.args, *arguments.kwonlyargs))


def _find_docstring(source: str, function: str) -> str:
    definition = _find_definition(source, function)
    return (definition and ast.get_docstring(definition)) or ""


def _find_definition(source: str, function: str) -> ast.FunctionDef | None:
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError):
        return None
    found = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == function]
    return found[-1] if found else None


def _list_inputs(test: str, parameters: tuple[str, ...]) -> Iterator[dict[str, JsonValue]]:
    """List what a test passes to `candidate`, where that is written out and JSON can say it."""
    for node in ast.walk(ast.parse(test)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        if node.func.id != "candidate" or node.keywords:
            continue
        try:
            values = [ast.literal_eval(argument) for argument in node.args]
            is_plain = json.loads(json.dumps(values)) == values
        except (ValueError, TypeError):
            continue
        if is_plain:
            yield dict(zip(parameters, values, strict=False))


def _choose(path: Path, name: str, limit: int) -> list[tuple[str, dict[str, Any]]]:
    """Read the records of a file, one JSON object per line, and choose some by hash.

    Returns:
        Keys `<name>-<number of the record>` and records, in the order of the keys' hashes.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            records = [(f"{name}-{number}", json.loads(line)) for number, line in enumerate(lines)]
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{path}: cannot read the problems: {error}") from None
    # Not by the hash that splits them: the first ones would all be held out.
    records.sort(key=lambda record: hash_fraction(f"order of {record[0]}"))
    return records[:limit] if limit else records
