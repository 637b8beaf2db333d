"""The `passages` environment: find the passage that answers a question, and cite it.

One episode (`>` is the policy):

    is house tax and property tax are same
    > search(house tax property tax)           Property tax / Property tax in the United ...
    > open(Property tax)                       Property tax or 'house tax' is a local tax ...
    > answer(yes, ["Property tax"])            answered

The questions are those that people asked, so their words need not be those of the passage. The
answer must be right and the passage cited (`rewards/cited_support.py`); a guess alone pays nothing.
"""

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import cast

from envs.corpora.boolq import Question, load_boolq
from envs.environment import EnvironmentSpec, Expert, Split
from envs.messages import JsonValue, Message, Role, ToolCall
from envs.reading import DEFAULT_PAGE_CHARACTERS, Reading
from envs.task import Task
from envs.task_sets import hash_fraction, split_of

NUM_PROOF_CHARACTERS = 120
"""Of the passage's beginning: what the cited passage has to state."""


@lru_cache
def make_tasks(
    split: Split, page_characters: int = DEFAULT_PAGE_CHARACTERS, num_tasks: int = 2000
) -> Sequence[Task]:
    """Make the tasks of a split; questions about one passage are on the same side.

    Args:
        split: Which part.
        page_characters: What `open` shows at once; `max_tool_characters` must allow it.
        num_tasks: Questions of both splits together, chosen by hash.

    Raises:
        ValueError: one line: a number is too small, or the passages are not installed.
    """
    if num_tasks < 1 or page_characters < 100:
        raise ValueError("num_tasks >= 1 and page_characters >= 100 are needed")
    passages = load_boolq()
    questions = sorted(
        passages.questions, key=lambda question: hash_fraction(f"order of {question.text}")
    )
    return tuple(
        _make_task(question, page_characters)
        for question in questions[:num_tasks]
        if split_of(question.title) is split
    )


def _make_task(question: Question, page_characters: int) -> Task:
    dictionary = load_boolq().dictionary
    article = dictionary.find(question.title)
    assert article is not None  # the passage came with the question
    text = article.text.partition("\n\n")[2]
    proof = text[:NUM_PROOF_CHARACTERS].rpartition(" ")[0]
    return Task(
        id=f"passages/{question.text}",
        environment="passages",
        grader="cited_support",
        data={
            "question": f"{question.text}? Answer yes or no, and cite the passage that says so.",
            "digest": dictionary.digest,
            "page_characters": page_characters,
        },
        reference={
            "value": "yes" if question.is_yes else "no",
            "statements": [[article.title, proof]],
            "documents": {article.title: text},
        },
    )


class PassageReading(Reading):
    """Search, open, find in the page, answer."""

    def __init__(self) -> None:
        self._answer: dict[str, JsonValue] = {}

    def reset(self, question: str, digest: str, page_characters: int) -> str:
        """Set the task: the question itself is the opening."""
        self._start_reading(load_boolq().dictionary, digest, page_characters)
        return question

    def answer(self, value: str, documents: list[str]) -> str:
        """Answer the question; this ends the episode.

        Args:
            value: `yes` or `no`.
            documents: Titles of the passages that say so.
        """
        self._answer = {"value": value, "documents": [str(title) for title in documents]}
        return "answered"

    def done(self) -> bool:
        """Whether the question is answered."""
        return bool(self._answer)

    def artifacts(self) -> dict[str, JsonValue]:
        """The answer; nothing where none was given."""
        return self._answer


def make_expert(task: Task, source: random.Random) -> Expert:
    """Make a scripted policy: it searches for the question, opens the passage, and answers.

    It knows passage and answer from the reference: nothing here reads English.
    """
    del source
    titles = list(cast("Mapping[str, str]", task.reference["documents"]))
    calls = (
        _call("search", query=str(task.data["question"]).partition("?")[0]),
        _call("open", title=titles[0]),
        _call("answer", value=task.reference["value"], documents=[*titles]),
    )

    def act(messages: Sequence[Message]) -> Message:
        num_done = sum(message.role is Role.POLICY for message in messages)
        return Message(role=Role.POLICY, tool_calls=(calls[num_done],))

    return act


def _call(name: str, **arguments: JsonValue) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


SPEC = EnvironmentSpec(
    name="passages", environment=PassageReading, tasks=make_tasks, expert=make_expert
)
