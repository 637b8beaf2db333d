"""The `code_repair` environment: write or mend a function in a small repository.

One episode (`>` is the policy):

    Mend `main_solution(numbers, k)` in solution.py ... one fault ...
    > list_files()                                   helpers.py / public_tests.json / solution.py
    > read_file(helpers.py)                          def window(numbers, k): ...
    > run_tests()                                    1 of 3 passed; main_solution(...) = 3, not 4
    > patch_file(helpers.py, "i < k", "i <= k")      patched helpers.py
    > run_tests()                                    3 of 3 passed
    > submit()                                       submitted

The problems are real ones that come as packages (`envs/corpora/code_problems.py`). To `write` the
function is one kind of task, to `repair` a solution with one fault in it is the other. Public tests
lie in the workspace; hidden ones decide the reward (`rewards/hidden_calls.py`).
"""

import json
import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import cast

from envs.bundle import CALL, bundle
from envs.corpora.code_problems import (
    MAIN_FILE,
    NUM_PUBLIC_TESTS,
    CodeProblem,
    load_problems,
)
from envs.environment import EnvironmentSpec, Expert, Split, ToolError
from envs.function_calls import call_function, is_same_value
from envs.messages import JsonValue, Message, Role, ToolCall
from envs.sandbox import SandboxLimits
from envs.task import Task
from envs.task_sets import split_of
from envs.workspace import Workspace

PUBLIC_TESTS_FILE = "public_tests.json"
MAX_REPLY_CHARACTERS = 600
LIMITS = SandboxLimits(wall_seconds=8.0, cpu_seconds=3)


@lru_cache
def make_tasks(split: Split, problems: str = "codeio", limit: int = 240) -> Sequence[Task]:
    """Make the tasks of a split: one or two per problem, always on the same side.

    Args:
        split: Which part.
        problems: Problem set: `codeio` or `human_eval`.
        limit: Records to look at; 0 is all (CodeI/O: 3,002, a quarter of an hour the first time).

    Raises:
        ValueError: one line: no such set, or its package is not installed.
    """
    tasks = []
    for problem in load_problems(problems, limit):
        if split_of(problem.key) is split:
            stub = _write_stub(problem)
            tasks.append(_make_task(problem, "write", {MAIN_FILE: stub}))
            if problem.faulty_files is not None:
                tasks.append(_make_task(problem, "repair", problem.faulty_files))
    return tuple(tasks)


def _make_task(problem: CodeProblem, kind: str, files: Mapping[str, str]) -> Task:
    public, hidden = problem.tests[:NUM_PUBLIC_TESTS], problem.tests[NUM_PUBLIC_TESTS:]
    signature = f"{problem.function}({', '.join(problem.parameters)})"
    order = {
        "write": f"Write the function `{signature}` in {MAIN_FILE}.",
        "repair": f"The function `{signature}` in {MAIN_FILE} has a fault somewhere: mend it.",
    }[kind]
    return Task(
        id=f"code_repair/{problem.key}-{kind}",
        environment="code_repair",
        grader="hidden_calls",
        data={
            "order": f"{order}\n\n{problem.description}",
            "function": problem.function,
            "files": {**files},
            "public_tests": [[*test] for test in public],
        },
        reference={
            "target": f"{MAIN_FILE.removesuffix('.py')}:{problem.function}",
            "hidden_tests": [[*test] for test in hidden],
            "solution": {**problem.files},
        },
    )


def _write_stub(problem: CodeProblem) -> str:
    return (
        f"def {problem.function}({', '.join(problem.parameters)}):\n    raise NotImplementedError\n"
    )


class CodeRepair(Workspace):
    """List, read, write and patch files; run Python and the public tests; submit."""

    def __init__(self) -> None:
        self._function = ""
        self._public_tests: list[tuple[JsonValue, JsonValue]] = []
        self._submission: dict[str, str] = {}

    async def reset(
        self,
        order: str,
        function: str,
        files: dict[str, str],
        public_tests: list[list[JsonValue]],
    ) -> str:
        """Set the task: a workspace with the files and the public tests."""
        self._function = function
        self._public_tests = [(arguments, expected) for arguments, expected in public_tests]
        tests = json.dumps(public_tests, indent=1)
        await self._start_workspace({**files, PUBLIC_TESTS_FILE: tests}, owner="code_repair")
        return f"{order}\n\nPublic tests: {PUBLIC_TESTS_FILE}, pairs of arguments and value."

    async def run_tests(self) -> str:
        """Run the public tests on the files as they are."""
        try:
            program = bundle(
                await self._read_submission(), MAIN_FILE.removesuffix(".py"), self._function
            )
        except ValueError as error:
            raise ToolError(str(error)) from None
        inputs = [arguments for arguments, _ in self._public_tests]
        results = await call_function(program, CALL, inputs, LIMITS)
        failures = [
            f"{self._function}(**{arguments}) = {result.error or repr(result.value)}, "
            f"not {expected!r}"
            for (arguments, expected), result in zip(self._public_tests, results, strict=True)
            if result.error is not None or not is_same_value(result.value, expected)
        ]
        num_tests = len(self._public_tests)
        summary = f"{num_tests - len(failures)} of {num_tests} passed"
        return "; ".join([summary, *sorted(failures, key=len)[:1]])[:MAX_REPLY_CHARACTERS]

    async def submit(self) -> str:
        """Hand in the Python files as they are; this ends the episode."""
        files = await self._read_submission()
        if not files:
            raise ToolError("there is no Python file")
        self._submission = files
        return "submitted"

    def done(self) -> bool:
        """Whether the files are handed in."""
        return bool(self._submission)

    def artifacts(self) -> dict[str, JsonValue]:
        """The submitted files; nothing where none were submitted."""
        return {"files": {**self._submission}} if self._submission else {}


def make_expert(task: Task, source: random.Random) -> Expert:
    """Make a scripted policy: it looks, tests, writes the solution from the reference, submits."""
    del source
    solution = cast("Mapping[str, str]", task.reference["solution"])
    writes = [_call("write_file", path=path, text=text) for path, text in solution.items()]
    first = [_call("read_file", path=MAIN_FILE)]
    turns = (first, [_call("run_tests")], writes, [_call("run_tests")], [_call("submit")])

    def act(messages: Sequence[Message]) -> Message:
        num_done = sum(message.role is Role.POLICY for message in messages)
        return Message(role=Role.POLICY, tool_calls=tuple(turns[min(num_done, 4)]))

    return act


def _call(name: str, **arguments: JsonValue) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


SPEC = EnvironmentSpec(
    name="code_repair", environment=CodeRepair, tasks=make_tasks, expert=make_expert
)
