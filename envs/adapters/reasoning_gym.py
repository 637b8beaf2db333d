"""The procedural tasks of reasoning-gym: one question, one tool, `answer`.

    [environments.sums]
    use = "envs.adapters.reasoning_gym:SPEC"
    options = { dataset = "chain_sum", settings = { max_terms = 4 } }

The package's own scorer grades (`rewards/reasoning_gym_answer.py`). A data set whose class calls
`eval` or `sympy.parse_expr` is refused: several scorers of 0.1.25 (`n_queens`, `spiral_matrix`,
`countdown`, ...) do so with the answer, and would run what the policy wrote outside any sandbox.
"""

import inspect
import json
import random
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from envs.adapters.extra import require_package
from envs.environment import EnvironmentSpec, Expert, Split
from envs.messages import JsonValue, Message, Role, ToolCall
from envs.task import Task
from envs.task_sets import split_of

if TYPE_CHECKING:
    from reasoning_gym.factory import ProceduralDataset

_RUNS_TEXT = re.compile(r"\b(?<!literal_)(?:eval|exec|parse_expr|parse_latex|sympify)\(")


class ReasoningQuestion:
    """One question, answered once."""

    def __init__(self) -> None:
        """Nothing is answered yet."""
        self._answer: str | None = None

    def reset(self, question: str) -> str:
        """Show the question."""
        return question

    def answer(self, text: str) -> str:
        """Give the final answer.

        Args:
            text: The answer alone, in the form that the question asks for.
        """
        self._answer = text
        return "answered"

    def done(self) -> bool:
        """Whether there is an answer."""
        return self._answer is not None

    def artifacts(self) -> dict[str, JsonValue]:
        """The answer, where there is one."""
        return {} if self._answer is None else {"answer": self._answer}


def make_tasks(
    split: Split,
    *,
    dataset: str = "chain_sum",
    num_tasks: int = 200,
    seed: int = 0,
    settings: Mapping[str, JsonValue] | None = None,
) -> Sequence[Task]:
    """Make the tasks of a split.

    Args:
        split: Which part.
        dataset: A data set's name in reasoning-gym.
        num_tasks: Questions of both splits together.
        seed: Other seeds give other questions.
        settings: Fields of the data set's own configuration.

    Raises:
        ValueError: the package is missing, there is no such data set, it does not take these
            settings, or its scorer would run the answer as code.
    """
    require_package("reasoning_gym")
    source: dict[str, JsonValue] = {
        "dataset": dataset,
        "num_tasks": num_tasks,
        "seed": seed,
        "settings": dict(settings or {}),
    }
    questions = _load_questions(_key_of(source))
    ids = [f"reasoning_gym/{dataset}/{seed}/{index}" for index in range(num_tasks)]
    return [
        Task(
            id=key,
            environment="envs.adapters.reasoning_gym:SPEC",
            grader="rewards.reasoning_gym_answer:grade",
            data={"question": questions[index]["question"]},
            reference={**source, "index": index},
            seed=index,
        )
        for index, key in enumerate(ids)
        if split_of(key) is split
    ]


def load_question(
    reference: Mapping[str, JsonValue],
) -> tuple["ProceduralDataset", dict[str, Any]]:
    """Make a question again, the same from the same reference, for the package's own scorer.

    Args:
        reference: Of one of the tasks.

    Returns:
        The data set, and the question's entry in it.

    Raises:
        ValueError: as in `make_tasks`.
    """
    questions = _load_questions(_key_of(reference))
    index = reference["index"]
    assert isinstance(index, int)
    return questions, questions[index]


def make_expert(task: Task, source: random.Random) -> Expert:
    """Give the answer that came with the question."""
    del source
    _, entry = load_question(task.reference)
    call = ToolCall(name="answer", arguments={"text": entry["answer"]})
    return lambda _: Message(role=Role.POLICY, tool_calls=(call,))


def _key_of(source: Mapping[str, JsonValue]) -> str:
    values = [source[name] for name in ("dataset", "num_tasks", "seed", "settings")]
    return json.dumps(values, sort_keys=True)


@lru_cache(maxsize=16)
def _load_questions(key: str) -> "ProceduralDataset":
    import reasoning_gym

    name, num_tasks, seed, settings = json.loads(key)
    try:
        questions = reasoning_gym.create_dataset(name, size=num_tasks, seed=seed, **settings)
    except (ValueError, TypeError, AssertionError) as error:
        raise ValueError(f"reasoning-gym cannot make {name!r}: {error}") from None
    # Some scorers call `eval` on the answer itself; the class that holds one is not to be trusted.
    if _RUNS_TEXT.search(inspect.getsource(type(questions))):
        raise ValueError(f"reasoning-gym's {name!r} would run the policy's answer as code")
    return questions


SPEC = EnvironmentSpec(
    name="reasoning_gym", environment=ReasoningQuestion, tasks=make_tasks, expert=make_expert
)
