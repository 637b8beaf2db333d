"""The `fact_code` environment: find a fact in a dictionary, then write code that needs it.

One episode (`>` is the policy):

    Write `f(day)` in solution.py. It returns how many days lie from D to `day` ... D is ...
    > search(CPL OCODE)                                 BCPL / OCODE / ...
    > open(BCPL)                                        BCPL <language> ... {TRIPOS} ...
    > open(TRIPOS)                                      TRIPOS ... (1995-05-05)
    > write_file(solution.py, "from datetime ...")      wrote solution.py
    > run_python("import solution; ...")                42
    > submit()                                          submitted

Nothing in the workspace gives the fact away: there are no public tests. Hidden ones decide the
reward (`rewards/hidden_calls.py`).
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import lru_cache
from typing import cast

from envs.corpora.foldoc import load_foldoc
from envs.corpora.walks import Walk, draw_walks
from envs.environment import EnvironmentSpec, Expert, Split, ToolError
from envs.messages import JsonValue, Message, Role, ToolCall
from envs.reading import DEFAULT_PAGE_CHARACTERS, Reading
from envs.task import Task
from envs.task_sets import hash_fraction, split_of
from envs.workspace import Workspace

FILE = "solution.py"
NUM_HIDDEN_TESTS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What is to be written around a date D."""

    parameter: str
    description: str
    """What the function returns."""
    solution: str
    """Its text, the date as `{fact}`."""
    compute: Callable[[date, random.Random], tuple[JsonValue, JsonValue]]
    """Draws an argument and computes the value for it, without running any text."""


def _count_days(fact: date, source: random.Random) -> tuple[JsonValue, JsonValue]:
    offset = source.randint(-9000, 9000)
    return (fact + timedelta(days=offset)).isoformat(), offset


def _add_days(fact: date, source: random.Random) -> tuple[JsonValue, JsonValue]:
    number = source.randint(-9000, 9000)
    return number, (fact + timedelta(days=number)).isoformat()


def _add_months(fact: date, source: random.Random) -> tuple[JsonValue, JsonValue]:
    number = source.randint(0, 300)
    years, month = divmod(fact.month - 1 + number, 12)
    return number, f"{fact.year + years}-{month + 1:02}"


PROGRAMS = {
    "count_days": Program(
        parameter="day",
        description="how many days lie from D to `day`, a date such as '2001-10-12'; it is "
        "negative where `day` is earlier",
        solution="from datetime import date\n\n\ndef f(day):\n"
        "    return (date.fromisoformat(day) - date.fromisoformat('{fact}')).days\n",
        compute=_count_days,
    ),
    "add_days": Program(
        parameter="n",
        description="the date `n` days after D, such as '2001-10-12'; `n` can be negative",
        solution="from datetime import date, timedelta\n\n\ndef f(n):\n"
        "    return (date.fromisoformat('{fact}') + timedelta(days=n)).isoformat()\n",
        compute=_add_days,
    ),
    "add_months": Program(
        parameter="n",
        description="the month `n` months after the month of D, such as '2001-10'",
        solution="def f(n):\n    year, month, _ = map(int, '{fact}'.split('-'))\n"
        "    years, month = divmod(month - 1 + n, 12)\n"
        "    return f'{{year + years}}-{{month + 1:02}}'\n",
        compute=_add_months,
    ),
}


@lru_cache
def make_tasks(
    split: Split,
    hops: int = 1,
    page_characters: int = DEFAULT_PAGE_CHARACTERS,
    num_tasks: int = 300,
) -> Sequence[Task]:
    """Make the tasks of a split.

    Args:
        split: Which part.
        hops: References to follow to the fact.
        page_characters: What `open` shows at once; `max_tool_characters` must allow it.
        num_tasks: Tasks of both splits together.

    Raises:
        ValueError: one line: a number is too small, or the dictionary is not installed.
    """
    if hops < 0 or num_tasks < 1 or page_characters < 100:
        raise ValueError("hops >= 0, num_tasks >= 1 and page_characters >= 100 are needed")
    dictionary = load_foldoc()
    walks = draw_walks(dictionary, hops, num_tasks)
    tasks = (_make_task(walk, dictionary.digest, page_characters) for walk in walks)
    return tuple(task for task in tasks if split_of(task.id) is split)


def _make_task(walk: Walk, digest: str, page_characters: int) -> Task:
    task_id = f"fact_code/{walk.key}"
    source = random.Random(task_id)
    names = [*PROGRAMS]
    program = PROGRAMS[names[int(hash_fraction(f"program of {task_id}") * len(names))]]
    drawn = (program.compute(date.fromisoformat(walk.date), source) for _ in range(50))
    tests: dict[str, JsonValue] = {
        str(argument): [{program.parameter: argument}, value] for argument, value in drawn
    }
    question = (
        f"Write `f({program.parameter})` in {FILE}. It returns {program.description}. D is the "
        f"date at the end of a dictionary's article. {walk.directions} The last article bears D. "
        "References are in braces; count them from the top of an article."
    )
    return Task(
        id=task_id,
        environment="fact_code",
        grader="hidden_calls",
        data={"question": question, "digest": digest, "page_characters": page_characters},
        reference={
            "target": f"{FILE.removesuffix('.py')}:f",
            "hidden_tests": [*tests.values()][:NUM_HIDDEN_TESTS],
            "solution": program.solution.format(fact=walk.date),
            "titles": [article.title for article in walk.articles],
        },
    )


class FactCode(Reading, Workspace):
    """Search, open, find in the page; work on files; submit."""

    def __init__(self) -> None:
        self._submission: dict[str, str] = {}

    async def reset(self, question: str, digest: str, page_characters: int) -> str:
        """Set the task: a dictionary, and a workspace without files."""
        self._start_reading(load_foldoc(), digest, page_characters)
        await self._start_workspace({}, owner="fact_code")
        return question

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
    """Make a scripted policy: it searches, reads each article, writes the solution, submits."""
    del source
    clues = re.findall(r"\{([^{}]+)\}", str(task.data["question"]))
    titles = cast("Sequence[str]", task.reference["titles"])
    calls = [
        _call("search", query=" ".join(clues)),
        *(_call("open", title=title) for title in titles),
        _call("write_file", path=FILE, text=str(task.reference["solution"])),
        _call("submit"),
    ]

    def act(messages: Sequence[Message]) -> Message:
        num_done = sum(message.role is Role.POLICY for message in messages)
        return Message(role=Role.POLICY, tool_calls=(calls[num_done],))

    return act


def _call(name: str, **arguments: JsonValue) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


SPEC = EnvironmentSpec(name="fact_code", environment=FactCode, tasks=make_tasks, expert=make_expert)
