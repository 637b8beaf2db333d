"""The `encyclopedia` environment: follow references through a real dictionary, prove the answer.

One episode (`>` is the policy):

    Find the article that refers to both {CPL} and {OCODE}. From there follow reference 6 ...
    > search(CPL OCODE)                                BCPL / OCODE / ...
    > open(BCPL)                                       BCPL <language> ... {TRIPOS} {operating ...
    > open(TRIPOS)                                     TRIPOS <operating system> ... (1995-05-05)
    > answer(1995-05-05, ["BCPL", "TRIPOS"])           answered

Questions are walks along the references, so that answers are right by construction and a question
can have any number of hops. `hops` and `page_characters` set how long an episode gets: about
`hops * page_characters / 4` tokens are read at least.
The date must be right and the cited articles must prove it (`rewards/cited_support.py`).
"""

import random
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import cast

from envs.corpora.foldoc import load_foldoc
from envs.corpora.walks import Walk, draw_walks
from envs.environment import EnvironmentSpec, Expert, Split
from envs.messages import JsonValue, Message, Role, ToolCall
from envs.reading import DEFAULT_PAGE_CHARACTERS, Reading
from envs.task import Task
from envs.task_sets import split_of

QUESTION = (
    "{directions} What date stands at the end of the last article? References are in braces; count "
    "them from the top of an article. Answer as YYYY-MM-DD and cite the titles of all articles on "
    "the way, the first and the last included."
)


@lru_cache
def make_tasks(
    split: Split,
    hops: int = 2,
    page_characters: int = DEFAULT_PAGE_CHARACTERS,
    num_tasks: int = 300,
) -> Sequence[Task]:
    """Make the tasks of a split.

    Args:
        split: Which part.
        hops: References to follow; 0 asks for the date of the first article.
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
    return Task(
        id=f"encyclopedia/{walk.key}",
        environment="encyclopedia",
        grader="cited_support",
        data={
            "question": QUESTION.format(directions=walk.directions),
            "digest": digest,
            "page_characters": page_characters,
        },
        reference={
            "value": walk.date,
            "statements": [list(statement) for statement in walk.statements],
            "documents": {article.title: article.text for article in walk.articles},
        },
    )


class Encyclopedia(Reading):
    """Search, open, find in the page, answer."""

    def __init__(self) -> None:
        self._answer: dict[str, JsonValue] = {}

    def reset(self, question: str, digest: str, page_characters: int) -> str:
        """Set the task: the question itself is the opening."""
        self._start_reading(load_foldoc(), digest, page_characters)
        return question

    def answer(self, value: str, documents: list[str]) -> str:
        """Answer the question; this ends the episode.

        Args:
            value: What was asked for.
            documents: Titles of the articles that prove it.
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
    """Make a scripted policy: it searches for the clues, reads each article, and answers.

    It knows the way from the reference: nothing here reads English.
    """
    del source
    titles = list(cast("Mapping[str, str]", task.reference["documents"]))

    def act(messages: Sequence[Message]) -> Message:
        num_done = sum(message.role is Role.POLICY for message in messages)
        if num_done == 0:
            clues = re.findall(r"\{([^{}]+)\}", messages[0].text)
            return _call("search", query=" ".join(clues))
        if num_done <= len(titles):
            return _call("open", title=titles[num_done - 1])
        return _call("answer", value=task.reference["value"], documents=[*titles])

    return act


def _call(name: str, **arguments: JsonValue) -> Message:
    return Message(role=Role.POLICY, tool_calls=(ToolCall(name=name, arguments=arguments),))


SPEC = EnvironmentSpec(
    name="encyclopedia", environment=Encyclopedia, tasks=make_tasks, expert=make_expert
)
