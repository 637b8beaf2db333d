"""The `code_tests` environment: write a small function, run its public tests, repair, submit.

One episode (`>` is the policy):

    code f(xs): keep numbers above 4, then add 3, return the sum
    > write(def f(xs): return sum(x + 3 for x in xs if x > 4))    saved
    > run_tests()                                0 of 3 passed; f([4, 7]) = 10, not 17
    > write(def f(xs): return sum(x + 3 for x in xs if x >= 4))   saved
    > run_tests()                                3 of 3 passed
    > submit()                                                    submitted

As in real requests, the description leaves something open: whether "above 4" takes the 4 itself.
Only the tests tell. Hidden tests decide the reward (`rewards/hidden_tests.py`).
"""

import random
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from envs.environment import EnvironmentSpec, Expert, Split, ToolError
from envs.function_calls import call_function, is_same_value
from envs.messages import JsonValue, Message, Role, ToolCall
from envs.task import Task
from envs.task_sets import hash_fraction, split_of

Number = int | float

INCLUSIVE_SHARE = 0.65
"""Share of the tasks whose tests take the boundary itself."""
NUM_PUBLIC_TESTS = 3
NUM_HIDDEN_TESTS = 12
MAX_CODE_CHARACTERS = 2000
MAX_REPLY_CHARACTERS = 80

NUMBERS: tuple[Number, ...] = (*range(13), *range(13), *(whole + 0.5 for whole in range(12)))
"""What inputs are drawn from: 0 to 12, whole numbers more often than halves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What happens to each number that is kept."""

    phrase: str
    expression: str
    function: Callable[[Number, int], Number]
    constants: range = range(1)
    """Values of `k`; only 0 where there is none."""


OPERATIONS = {
    "add": Operation(
        phrase="add {k}",
        expression="x + {k}",
        function=lambda x, k: x + k,
        constants=range(1, 10),
    ),
    "subtract": Operation(
        phrase="subtract {k}",
        expression="x - {k}",
        function=lambda x, k: x - k,
        constants=range(1, 10),
    ),
    "subtract_from": Operation(
        phrase="subtract from {k}",
        expression="{k} - x",
        function=lambda x, k: k - x,
        constants=range(1, 10),
    ),
    "multiply": Operation(
        phrase="multiply by {k}",
        expression="x * {k}",
        function=lambda x, k: x * k,
        constants=range(2, 10),
    ),
    "square": Operation(phrase="square", expression="x * x", function=lambda x, _: x * x),
    "negate": Operation(phrase="negate", expression="-x", function=lambda x, _: -x),
}
RESULTS = {
    "sum": ("the sum", "sum({0})"),
    "list": ("a list", "list({0})"),
    "sorted": ("a sorted list", "sorted({0})"),
    "first": ("the first", "next({0})"),
}
"""Name: what the description says, and the expression around the kept and mapped numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What the function of one task does: keep some numbers, map them, combine them.

    Worked example:

        rule = Rule(side="above", threshold=4, operation="add", constant=3, result="sum")
        rule.describe()                   "keep numbers above 4, then add 3, return the sum"
        rule.write(is_inclusive=False)    "def f(xs): return sum(x + 3 for x in xs if x > 4)"
        rule.apply([4, 7], is_inclusive=False)    10
    """

    side: str
    """`above` or `below`."""
    threshold: int
    operation: str
    """A key of `OPERATIONS`."""
    constant: int
    """The operation's `k`; 0 where it has none."""
    result: str
    """A key of `RESULTS`."""

    @property
    def key(self) -> str:
        """The rule in one word, unique among the rules."""
        return f"{self.side}-{self.threshold}-{self.operation}-{self.constant}-{self.result}"

    def describe(self) -> str:
        """Say it as a person would, leaving open what happens at the threshold itself."""
        operation = OPERATIONS[self.operation].phrase.format(k=self.constant)
        result = RESULTS[self.result][0]
        return f"keep numbers {self.side} {self.threshold}, then {operation}, return {result}"

    def write(self, *, is_inclusive: bool) -> str:
        """Write it as a Python function."""
        sign = {"above": ">", "below": "<"}[self.side] + ("=" if is_inclusive else "")
        expression = OPERATIONS[self.operation].expression.format(k=self.constant)
        numbers = f"{expression} for x in xs if x {sign} {self.threshold}"
        return f"def f(xs): return {RESULTS[self.result][1].format(numbers)}"

    def apply(self, numbers: Sequence[Number], *, is_inclusive: bool) -> JsonValue:
        """Compute it, without running any text."""
        kept = [x for x in numbers if self.keeps(x, is_inclusive=is_inclusive)]
        function = OPERATIONS[self.operation].function
        mapped = [function(x, self.constant) for x in kept]
        if self.result == "sum":
            return sum(mapped)
        if self.result == "first":
            return mapped[0]
        return [*sorted(mapped)] if self.result == "sorted" else [*mapped]

    def keeps(self, x: Number, *, is_inclusive: bool) -> bool:
        """Whether a number passes the filter."""
        if x == self.threshold:
            return is_inclusive
        return x > self.threshold if self.side == "above" else x < self.threshold


def list_rules() -> Iterator[Rule]:
    """List every rule whose two readings are two functions."""
    for side, threshold, operation, result in product(
        ("above", "below"), range(1, 10), OPERATIONS, RESULTS
    ):
        for constant in OPERATIONS[operation].constants:
            # A boundary that is mapped to 0 does not change a sum.
            is_zero = operation.startswith("subtract") and constant == threshold
            if not (is_zero and result == "sum"):
                yield Rule(
                    side=side,
                    threshold=threshold,
                    operation=operation,
                    constant=constant,
                    result=result,
                )


@lru_cache
def make_tasks(split: Split) -> Sequence[Task]:
    """Make the tasks of a split, one per rule, in a fixed order."""
    rules = ((f"code_tests/{rule.key}", rule) for rule in list_rules())
    return tuple(_make_task(key, rule) for key, rule in rules if split_of(key) is split)


def _make_task(task_id: str, rule: Rule) -> Task:
    is_inclusive = hash_fraction(f"reading of {task_id}") < INCLUSIVE_SHARE
    seed = int(hash_fraction(f"seed of {task_id}") * 2**31)
    source = random.Random(seed)
    # The shortest public test puts the boundary first: it tells the readings apart at a glance.
    public = [[rule.threshold, _kept_number(rule, source)]]
    public += [_draw_input(rule, source, 3) for _ in range(NUM_PUBLIC_TESTS - 1)]
    hidden = [_draw_input(rule, source, source.randint(5, 8)) for _ in range(NUM_HIDDEN_TESTS)]

    def tests(inputs: list[list[Number]]) -> list[JsonValue]:
        return [[[*xs], rule.apply(xs, is_inclusive=is_inclusive)] for xs in inputs]

    return Task(
        id=task_id,
        environment="code_tests",
        grader="hidden_tests",
        data={"description": rule.describe(), "public_tests": tests(public)},
        reference={
            "function": "f",
            "hidden_tests": tests(hidden),
            "solution": rule.write(is_inclusive=is_inclusive),
        },
        seed=seed,
    )


def _draw_input(rule: Rule, source: random.Random, length: int) -> list[Number]:
    """Draw numbers in a random order: the boundary, one that is kept, and others.

    They are drawn again until the two readings of the rule give two results.
    """
    while True:
        numbers: list[Number] = [rule.threshold, _kept_number(rule, source)]
        numbers += source.choices(NUMBERS, k=length - 2)
        source.shuffle(numbers)
        strict, inclusive = (rule.apply(numbers, is_inclusive=reading) for reading in (False, True))
        if strict != inclusive:
            return numbers


def _kept_number(rule: Rule, source: random.Random) -> Number:
    """Draw a number that both readings keep, so that no result is empty."""
    return source.choice([x for x in NUMBERS if rule.keeps(x, is_inclusive=False)])


class CodeTests:
    """Write `f(xs)`, run the public tests, submit."""

    def __init__(self) -> None:
        self._public_tests: list[tuple[JsonValue, JsonValue]] = []
        self._code = ""
        self._is_submitted = False

    def reset(self, description: str, public_tests: list[list[JsonValue]]) -> str:
        """Set the task; the tests stay out of sight until they are run."""
        self._public_tests = [(xs, expected) for xs, expected in public_tests]
        return f"code f(xs): {description}"

    async def write(self, code: str) -> str:
        """Save the function, in place of an earlier one.

        Args:
            code: Python text that defines `f(xs)`.
        """
        problem = find_syntax_error(code)
        if problem is not None:
            return problem
        self._code = code
        return "saved"

    async def run_tests(self) -> str:
        """Run the public tests on what was written last."""
        if not self._code:
            raise ToolError("nothing is written")
        inputs = [xs for xs, _ in self._public_tests]
        results = await call_function(self._code, "f", inputs)
        failures = [
            f"f({xs}) = {result.error or result.value}, not {expected}"
            for (xs, expected), result in zip(self._public_tests, results, strict=True)
            if result.error is not None or not is_same_value(result.value, expected)
        ]
        num_tests = len(self._public_tests)
        summary = f"{num_tests - len(failures)} of {num_tests} passed"
        return "; ".join([summary, *sorted(failures, key=len)[:1]])[:MAX_REPLY_CHARACTERS]

    def submit(self) -> str:
        """Hand in what was written last; this ends the episode."""
        self._is_submitted = True
        return "submitted"

    def done(self) -> bool:
        """Whether the function is handed in."""
        return self._is_submitted

    def artifacts(self) -> dict[str, JsonValue]:
        """The submitted function; nothing where none was submitted."""
        return {"code": self._code} if self._is_submitted else {}


def find_syntax_error(code: str) -> str | None:
    """Compile without running; one line on what is wrong, or None."""
    if len(code) > MAX_CODE_CHARACTERS:
        return f"error: more than {MAX_CODE_CHARACTERS} characters"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(code, "solution", "exec")
    except SyntaxError as error:
        return f"syntax error in line {error.lineno}: {error.msg}"[:MAX_REPLY_CHARACTERS]
    except (ValueError, RecursionError, MemoryError):
        return "syntax error"
    return None


def make_expert(task: Task, source: random.Random, careful_share: float = 0.3) -> Expert:
    """Make a scripted policy: careful in some episodes, hasty in the others.

    Both first write the strict reading, by habit. The hasty one submits it. The careful one runs
    the tests, writes the inclusive reading if one fails, and submits only what has passed.

    Args:
        task: The task of the episode.
        source: Decides which one plays.
        careful_share: Probability of the careful one.
    """
    del task  # all that an expert may know is in the messages
    is_careful = source.random() < careful_share

    def act(messages: Sequence[Message]) -> Message:
        rule = parse_description(messages[0].text)
        called = [call.name for message in messages for call in message.tool_calls]
        if not called:
            return _call("write", code=rule.write(is_inclusive=False))
        if not is_careful or messages[-1].text.startswith(f"{NUM_PUBLIC_TESTS} of"):
            return _call("submit")
        if called[-1] == "run_tests":
            return _call("write", code=rule.write(is_inclusive=True))
        return _call("run_tests")

    return act


def parse_description(text: str) -> Rule:
    """Read a rule back from an opening.

    Raises:
        ValueError: no rule is described like that.
    """
    rule = _rules_by_description().get(re.sub(r"^code f\(xs\): ", "", text))
    if rule is None:
        raise ValueError(f"no rule reads {text!r}")
    return rule


@lru_cache(maxsize=1)
def _rules_by_description() -> dict[str, Rule]:
    return {rule.describe(): rule for rule in list_rules()}


def _call(name: str, **arguments: JsonValue) -> Message:
    return Message(role=Role.POLICY, tool_calls=(ToolCall(name=name, arguments=arguments),))


SPEC = EnvironmentSpec(
    name="code_tests", environment=CodeTests, tasks=make_tasks, expert=make_expert
)
