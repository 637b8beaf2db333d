"""The `retrieval` environment: find a fact in a corpus, and cite the page that says it.

One episode (`>` is the policy):

    gallium, below: in which year was it discovered?
    > search(gallium: table)             1 gallium: table / 2 gallium: uses / 3 ...
    > open(1)                            symbol: Ga. group: 13. ... below: indium.
    > search(indium: history)            1 indium: history / ...
    > open(1)                            1863, Germany. Ferdinand Reich, T. Richter. ...
    > answer(1863, indium: history)      answered

One hop asks for a fact of an element (`gallium: how dense is it?`), two hops for a fact of its
neighbour there in the periodic table (`gallium, below: how dense is it?`).
The answer must be right and the cited page must support it (`rewards/cited_answer.py`).
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from envs.elements import DIRECTIONS, Element, load_elements
from envs.environment import EnvironmentSpec, Expert, Split, ToolError
from envs.messages import JsonValue, Message, Role, ToolCall
from envs.search_index import Document, SearchIndex
from envs.task import Task
from envs.task_sets import split_of

NUM_HITS = 3
"""Titles that a search lists."""
MAX_PAGE_CHARACTERS = 120
"""What `open` shows of a page; the index holds all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A fact that a question can ask for."""

    fact: str
    """Key of `Element.facts`."""
    phrase: str
    """The question; `it` is the element, or its neighbour."""
    page: str
    """Kind of the page that states the fact."""
    pattern: str
    """Regular expression: its group is the value on that page."""
    other_page: str | None = None
    """Kind of a page that may state the fact as well, and then may be cited."""


RELATIONS = (
    Relation(
        fact="year",
        phrase="in which year was it discovered?",
        page="history",
        pattern=r"^(\d+),",
        other_page="description",
    ),
    Relation(
        fact="place",
        phrase="in which country was it discovered?",
        page="history",
        pattern=r"^\d+, ([^.]+)\.",
    ),
    Relation(
        fact="symbol", phrase="how is it abbreviated?", page="table", pattern=r"symbol: (\w+)\."
    ),
    Relation(fact="group", phrase="in which group is it?", page="table", pattern=r"group: (\d+)\."),
    Relation(fact="density", phrase="how dense is it?", page="table", pattern=r"density: (\S+)\."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What one task asks."""

    element: str
    relation: Relation
    direction: str | None = None
    """Two hops: the fact of the neighbour there, not of the element itself."""

    @property
    def text(self) -> str:
        """The question as the policy reads it."""
        subject = f"{self.element}, {self.direction}" if self.direction else self.element
        return f"{subject}: {self.relation.phrase}"

    @property
    def target(self) -> Element:
        """The element whose fact answers the question."""
        element = load_elements()[self.element]
        return load_elements()[element.neighbours[self.direction]] if self.direction else element

    @property
    def key(self) -> str:
        """The question in one word, unique among the questions."""
        return "-".join(filter(None, (self.element, self.direction, self.relation.fact)))


def list_questions() -> Iterator[Question]:
    """List every question that has an answer."""
    for name, element in load_elements().items():
        for direction in (None, *DIRECTIONS):
            if direction is not None and direction not in element.neighbours:
                continue
            for relation in RELATIONS:
                question = Question(element=name, relation=relation, direction=direction)
                if relation.fact in question.target.facts:
                    yield question


@lru_cache
def make_tasks(split: Split) -> Sequence[Task]:
    """Make the tasks of a split, one per question, in a fixed order."""
    tasks = map(_make_task, list_questions())
    return tuple(task for task in tasks if split_of(task.id) is split)


def _make_task(question: Question) -> Task:
    target, relation = question.target, question.relation
    pages = (target.pages.get(kind) for kind in (relation.page, relation.other_page) if kind)
    return Task(
        id=f"retrieval/{question.key}",
        environment="retrieval",
        grader="cited_answer",
        data={"question": question.text},
        reference={
            "value": target.facts[relation.fact],
            "documents": {page.title: page.text for page in pages if page is not None},
        },
    )


@lru_cache(maxsize=1)
def load_index() -> SearchIndex:
    """Build the index of all pages; episodes share it."""
    elements = load_elements().values()
    return SearchIndex([page for element in elements for page in element.pages.values()])


class Retrieval:
    """Search, open, answer."""

    def __init__(self) -> None:
        self._hits: list[Document] = []
        self._answer: dict[str, JsonValue] = {}

    def reset(self, question: str) -> str:
        """Set the task: the question itself is the opening."""
        return question

    def search(self, query: str) -> str:
        """Search the pages; list the titles of the best.

        Args:
            query: Words to look for.
        """
        self._hits = load_index().search(query, NUM_HITS)
        lines = [f"{number} {hit.title}" for number, hit in enumerate(self._hits, start=1)]
        return "\n".join(lines) or "no page"

    def open(self, hit: int) -> str:
        """Read a page of the last search.

        Args:
            hit: Its number in the list.
        """
        if not 1 <= hit <= len(self._hits):
            raise ToolError(f"no hit {hit}")
        return cut_at_a_word(self._hits[hit - 1].text)

    def answer(self, value: str, document: str) -> str:
        """Answer the question; this ends the episode.

        Args:
            value: The fact asked for.
            document: Title of the page that says so.
        """
        self._answer = {"value": value, "document": document}
        return "answered"

    def done(self) -> bool:
        """Whether the question is answered."""
        return bool(self._answer)

    def artifacts(self) -> dict[str, JsonValue]:
        """The answer; nothing where none was given."""
        return self._answer


def cut_at_a_word(text: str) -> str:
    """Cut a page to what `open` shows."""
    if len(text) <= MAX_PAGE_CHARACTERS:
        return text
    return text[: MAX_PAGE_CHARACTERS - 3].rpartition(" ")[0] + " ..."


def make_expert(task: Task, source: random.Random, careful_share: float = 0.3) -> Expert:
    """Make a scripted policy: careful in some episodes, hasty in the others.

    Both look the neighbour up, then the fact. The careful one cites the page that states the fact;
    the hasty one cites the page that it opened first, which for two hops is another element's.

    Args:
        task: The task of the episode.
        source: Decides which one plays.
        careful_share: Probability of the careful one.
    """
    del task  # all that an expert may know is in the messages
    is_careful = source.random() < careful_share

    def act(messages: Sequence[Message]) -> Message:
        question = parse_question(messages[0].text)
        queries = [
            str(call.arguments["query"])
            for message in messages
            for call in message.tool_calls
            if call.name == "search"
        ]
        reply = messages[-1]
        if reply.tool_name == "search":
            return _call("open", hit=1)
        if not queries and question.direction is not None:
            return _call("search", query=f"{question.element}: table")
        if not queries:
            return _call("search", query=f"{question.element}: {question.relation.page}")
        if len(queries) == 1 and question.direction is not None:
            neighbour = _find(rf"{question.direction}: (\w+)\.", reply.text)
            return _call("search", query=f"{neighbour}: {question.relation.page}")
        value = _find(question.relation.pattern, reply.text)
        return _call("answer", value=value, document=queries[-1 if is_careful else 0])

    return act


def parse_question(text: str) -> Question:
    """Read a question back from an opening.

    Raises:
        ValueError: no question reads like that.
    """
    question = _questions_by_text().get(text)
    if question is None:
        raise ValueError(f"no question reads {text!r}")
    return question


@lru_cache(maxsize=1)
def _questions_by_text() -> dict[str, Question]:
    return {question.text: question for question in list_questions()}


def _find(pattern: str, text: str) -> str:
    """Find a value on a page; `unknown` where it is not there, which a hasty expert may meet."""
    found = re.search(pattern, text)
    return found.group(1) if found else "unknown"


def _call(name: str, **arguments: JsonValue) -> Message:
    return Message(role=Role.POLICY, tool_calls=(ToolCall(name=name, arguments=arguments),))


SPEC = EnvironmentSpec(
    name="retrieval", environment=Retrieval, tasks=make_tasks, expert=make_expert
)
