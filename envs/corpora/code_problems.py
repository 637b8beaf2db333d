"""Programming problems that are known to be usable: pure, deterministic, with tests that tell.

Takes the problems that packages ship, returns `CodeProblem`s with tests and with faulty variants.
What a reference solution does is found out by running it, twice, in a sandbox (nobody has read
3,000 records): kept are those that need the standard library alone, return plain values, the same
each time, and at least three different ones. That takes a third of a second per record, so the
outcome is kept in the user's cache folder; what a record gives depends on the record alone.
"""

import ast
import asyncio
import dataclasses
import hashlib
import json
import random
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast

from envs.bundle import CALL, bundle
from envs.cache import cache_folder, read_cached, write_cached
from envs.corpora.mutants import list_mutants
from envs.corpora.problem_files import GENERATE, READERS, RawProblem
from envs.function_calls import CallResult, call_function, is_same_value
from envs.messages import JsonValue
from envs.sandbox import SandboxLimits
from envs.task_sets import hash_fraction

FORMAT = 1
"""Of the cache; a new one forgets what was found out before."""
NUM_PUBLIC_TESTS = 3
NUM_TESTS = 15
"""Public and hidden together."""
MIN_DISTINCT_OUTPUTS = 3
MAX_TEST_CHARACTERS = 1500
"""Of one test, as JSON."""
MAX_MUTANTS_TRIED = 5
NUM_AT_ONCE = 4
"""Examined at once."""
LIMITS = SandboxLimits(wall_seconds=30.0, cpu_seconds=2, max_output_bytes=1 << 18)
"""Wall time is generous: on a busy machine a problem must not seem unusable."""
MAIN_FILE = "solution.py"
HELPER_FILE = "helpers.py"

Test = tuple[dict[str, JsonValue], JsonValue]
"""Arguments by name, and the value that is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeProblem:
    """A problem with everything that a task can be made of."""

    key: str
    description: str
    function: str
    parameters: tuple[str, ...]
    files: Mapping[str, str]
    """A solution: `solution.py`, and `helpers.py` where there is more than one function."""
    tests: Sequence[Test]
    """The first `NUM_PUBLIC_TESTS` are public."""
    faulty_files: Mapping[str, str] | None
    """`files` with one fault that a public test shows; None where none was found."""


def load_problems(name: str, limit: int) -> list[CodeProblem]:
    """Load a problem set, and find out what is not known of it yet.

    Args:
        name: A key of `READERS`.
        limit: Records to look at, in an order by hash; 0 is all. Around six in ten are
            usable.

    Raises:
        ValueError: one line: no such set, or its package is not installed.
        SandboxError: nothing on this machine confines programs.
    """
    if name not in READERS:
        raise ValueError(f"no problem set {name!r}; known: {', '.join(READERS)}")
    raws = [*READERS[name](limit)]
    # Tasks are made wherever somebody asks, also inside a running loop: it gets a thread.
    with ThreadPoolExecutor(1) as thread:
        problems = thread.submit(asyncio.run, _load_all(raws)).result()
    return [problem for problem in problems if problem is not None]


async def _load_all(raws: Sequence[RawProblem]) -> list[CodeProblem | None]:
    slots = asyncio.Semaphore(NUM_AT_ONCE)

    async def load(raw: RawProblem) -> CodeProblem | None:
        content = json.dumps(dataclasses.asdict(raw), sort_keys=True)
        digest = hashlib.sha256(f"{FORMAT} {content}".encode()).hexdigest()[:24]
        path = cache_folder() / "code_problems" / f"{digest}.json"
        known = read_cached(path)
        if known is None:
            async with slots:
                problem = await examine(raw)
            known = {"problem": problem and dataclasses.asdict(problem)}
            write_cached(path, cast("JsonValue", known))
        return _parse_cached(cast("dict[str, object]", known))

    return [*await asyncio.gather(*map(load, raws))]


def _parse_cached(known: Mapping[str, object]) -> CodeProblem | None:
    fields = known["problem"]
    return CodeProblem(**fields) if isinstance(fields, dict) else None


async def examine(raw: RawProblem) -> CodeProblem | None:
    """Find out by running it whether a problem is usable; None where it is not.

    Raises:
        SandboxError: the sandbox failed.
    """
    if not uses_standard_library_alone(raw.solution):
        return None
    inputs = await _draw_inputs(raw)
    if len(inputs) < NUM_TESTS // 2:
        return None
    candidates = [split_files(raw.solution, raw.function), {MAIN_FILE: raw.solution}]
    expected = await _run(candidates[-1], raw.function, inputs)
    for files in candidates:
        if files is not None and _agree(expected, await _run(files, raw.function, inputs)):
            break
    else:
        return None
    tests = [(arguments, result.value) for arguments, result in zip(inputs, expected, strict=True)]
    if len({json.dumps(value) for _, value in tests}) < MIN_DISTINCT_OUTPUTS:
        return None
    if any(len(json.dumps(test)) > MAX_TEST_CHARACTERS for test in tests):
        return None
    return CodeProblem(
        key=raw.key,
        description=raw.description.strip(),
        function=raw.function,
        parameters=raw.parameters,
        files=files,
        tests=tests,
        faulty_files=await _find_fault(raw, files, tests),
    )


def uses_standard_library_alone(source: str) -> bool:
    """Whether every import of a module is one of the standard library's."""
    try:
        nodes = [*ast.walk(ast.parse(source))]
    except (SyntaxError, ValueError, RecursionError):
        return False
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return all(name.partition(".")[0] in sys.stdlib_module_names for name in names)


def split_files(source: str, function: str) -> dict[str, str] | None:
    """Split a module into the function and its helpers, as a small repository has them.

    Returns:
        The two files; None where there are no helpers. That they still do the same has to be
        tried: a module can do things that do not survive.
    """
    body = ast.parse(source).body
    main = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == function]
    kinds = (ast.FunctionDef, ast.ClassDef)
    helpers = [node for node in body if isinstance(node, kinds) and node.name != function]
    if len(main) != 1 or not helpers:
        return None
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    used = {node.id for node in ast.walk(main[0]) if isinstance(node, ast.Name)}
    rest = [node for node in body if node is not main[0]]
    names = sorted(used & {name for node in rest for name in _defined_names(node)})
    if not names:
        return None
    lines = [*map(ast.unparse, imports), f"from helpers import {', '.join(names)}"]
    return {
        MAIN_FILE: "\n".join(lines) + f"\n\n\n{ast.unparse(main[0])}\n",
        HELPER_FILE: "\n\n".join(map(ast.unparse, rest)) + "\n",
    }


def _defined_names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []


async def _draw_inputs(raw: RawProblem) -> list[dict[str, JsonValue]]:
    """Draw arguments, or take those that are given; no two the same."""
    drawn: Sequence[JsonValue] = [*raw.inputs]
    if raw.generator:
        program = f"{raw.generator}\n\ndef draw(seed):\n    return {GENERATE}(Random(seed))\n"
        seeds = [int(hash_fraction(f"{raw.key} {n}") * 2**31) for n in range(2 * NUM_TESTS)]
        results = await call_function(program, "draw", seeds, LIMITS)
        drawn = [result.value for result in results]
    different = {
        json.dumps(arguments): arguments
        for arguments in drawn
        if isinstance(arguments, dict) and set(arguments) <= set(raw.parameters)
    }
    return [*different.values()][:NUM_TESTS]


async def _run(
    files: Mapping[str, str], function: str, inputs: Sequence[dict[str, JsonValue]]
) -> tuple[CallResult, ...]:
    module = MAIN_FILE.removesuffix(".py")
    return await call_function(bundle(files, module, function), CALL, [*inputs], LIMITS)


def _agree(first: Sequence[CallResult], second: Sequence[CallResult]) -> bool:
    """Whether two runs gave values, and the same ones."""
    return all(
        one.error is None and other.error is None and is_same_value(one.value, other.value)
        for one, other in zip(first, second, strict=True)
    )


async def _find_fault(
    raw: RawProblem, files: Mapping[str, str], tests: Sequence[Test]
) -> Mapping[str, str] | None:
    """Find a fault that runs, returns values, and shows in a public test."""
    faulty = [{**files, path: text} for path in sorted(files) for text in list_mutants(files[path])]
    random.Random(raw.key).shuffle(faulty)
    for candidate in faulty[:MAX_MUTANTS_TRIED]:
        results = await _run(candidate, raw.function, [arguments for arguments, _ in tests])
        rights = [
            result.error is None and is_same_value(result.value, expected)
            for result, (_, expected) in zip(results, tests, strict=True)
        ]
        has_values = all(result.error is None for result in results)
        if has_values and not all(rights[:NUM_PUBLIC_TESTS]):
            return candidate
    return None
