"""The `long_reading` environment: five keys, pressed a hundred times; the first press decides.

One episode (`>` is the policy):

    gallium: in which year was it discovered?
    > history             year
    > table               H
    > uses                He
    ...
    > table               end

Five volumes hold a page about each element, and there is a key for each. The first key pressed
takes its volume, and shows whether that states the fact in question. From then on every key turns a
leaf, whichever it is. Only if the volume states the fact, the episode pays once its last leaf is
turned (`rewards/right_volume`).

So one early choice decides, the reply to it tells how it went, and all later choices are made in
the same words and mean nothing: noise to whatever credits a turn by the outcome. That is what the
long-horizon run needs.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envs.elements import Element, load_elements
from envs.environment import EnvironmentSpec, Expert, Split
from envs.messages import JsonValue, Message, Role, ToolCall
from envs.task import Task
from envs.task_sets import split_of

VOLUMES = ("table", "history", "description", "uses", "sources")
"""Kinds of pages of `envs/elements.py`: one volume each."""
NOTHING = "nothing"
"""What taking a volume shows that does not state the fact."""
END = "end"
"""What turning the last leaf shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Something that a question can ask of an element."""

    key: str
    """What taking a volume shows that states it."""
    phrase: str
    """The question; `it` is the element."""
    volume: str
    """The volume that states it."""

    def is_stated_of(self, element: Element) -> bool:
        """Whether the volume has it: a fact, or else a page, which then answers as a whole."""
        return element.facts.get(self.key) is not None or (
            self.key not in FACTS and self.volume in element.pages
        )

    def is_stated_elsewhere(self, element: Element) -> bool:
        """Whether another volume names the fact: descriptions often do."""
        if self.key not in FACTS:
            return False
        word = re.compile(rf"\b{re.escape(element.facts[self.key])}\b")
        return any(
            word.search(page.text) for name, page in element.pages.items() if name != self.volume
        )


FACTS = ("year", "place", "symbol", "density")
"""Subjects that are keys of `Element.facts`."""
SUBJECTS = {
    subject.key: subject
    for subject in (
        Subject(key="year", phrase="in which year was it discovered?", volume="history"),
        Subject(key="place", phrase="in which country was it discovered?", volume="history"),
        Subject(key="symbol", phrase="how is it abbreviated?", volume="table"),
        Subject(key="density", phrase="how dense is it?", volume="table"),
        Subject(key="look", phrase="what does it look like?", volume="description"),
        Subject(key="purpose", phrase="what is it used for?", volume="uses"),
        Subject(key="origin", phrase="where is it found?", volume="sources"),
    )
}
"""By key."""


def make_tasks(
    split: Split, leaves: int = 100, subjects: Sequence[str] = tuple(SUBJECTS)
) -> Sequence[Task]:
    """Make the tasks of a split: an element and a subject that one volume alone states.

    Args:
        split: Which part of the tasks.
        leaves: Leaves of a volume, 1 to 118; an episode has one turn more.
        subjects: What is asked: keys of SUBJECTS.

    Raises:
        ValueError: there are not so many elements, or no such subject.
    """
    if not 1 <= leaves <= len(load_elements()):
        raise ValueError(f"leaves = {leaves} is not in [1, {len(load_elements())}]")
    if not subjects or not set(subjects) <= set(SUBJECTS):
        raise ValueError(f"subjects = {list(subjects)}: there are {', '.join(SUBJECTS)}")
    return tuple(task for task in _every_task(leaves, subjects) if split_of(task.id) is split)


def _every_task(leaves: int, subjects: Sequence[str]) -> Iterator[Task]:
    for element in load_elements().values():
        for subject in (SUBJECTS[key] for key in subjects):
            if subject.is_stated_of(element) and not subject.is_stated_elsewhere(element):
                yield Task(
                    id=f"long_reading/{element.name}-{subject.key}",
                    environment="envs.long_reading:SPEC",
                    grader="rewards.right_volume:grade",
                    data={
                        "question": f"{element.name}: {subject.phrase}",
                        "subject": subject.key,
                        "leaves": leaves,
                    },
                    reference={"volume": subject.volume},
                )


class LongReading:
    """Take a volume by its key, then turn leaf after leaf by any."""

    def __init__(self) -> None:
        self._subject = ""
        self._volume = ""
        self._symbols: list[str] = []
        """What the leaves that are still to be turned show, the next one last."""

    def reset(self, question: str, subject: str, leaves: int) -> str:
        """Set the task: the question itself is the opening."""
        self._subject = subject
        symbols = [each.facts["symbol"] for each in load_elements().values()]
        self._symbols = [*symbols[: leaves - 1], END][::-1]
        return question

    def table(self) -> str:
        """Take the table of elements, or turn a leaf."""
        return self._press("table")

    def history(self) -> str:
        """Take the volume on discoveries, or turn a leaf."""
        return self._press("history")

    def description(self) -> str:
        """Take the volume on appearances, or turn a leaf."""
        return self._press("description")

    def uses(self) -> str:
        """Take the volume on uses, or turn a leaf."""
        return self._press("uses")

    def sources(self) -> str:
        """Take the volume on ores and sources, or turn a leaf."""
        return self._press("sources")

    def done(self) -> bool:
        """Whether the last leaf is turned."""
        return not self._symbols

    def artifacts(self) -> dict[str, JsonValue]:
        """The volume that was leafed through to its end; nothing before that."""
        return {"volume": self._volume} if self.done() else {}

    def _press(self, volume: str) -> str:
        if self._volume:
            return self._symbols.pop()
        self._volume = volume
        return self._subject if SUBJECTS[self._subject].volume == volume else NOTHING


def make_expert(task: Task, source: random.Random, habit: float = 0.95) -> Expert:
    """Make a scripted policy that takes any volume, and then presses by habit.

    Args:
        task: The task of the episode.
        source: Decides.
        habit: Probability of pressing one of the first two keys on, after having found the fact,
            and one of the last three after nothing. It makes no difference to the episode; but who
            learns to act like this has to remember what was found.
    """
    del task  # all that an expert may know is in the messages

    def act(messages: Sequence[Message]) -> Message:
        keys = VOLUMES
        if len(messages) > 1:
            is_found = messages[2].text != NOTHING
            keys = VOLUMES[:2] if (source.random() < habit) == is_found else VOLUMES[2:]
        call = ToolCall(name=source.choice(keys), arguments={})
        return Message(role=Role.POLICY, tool_calls=(call,))

    return act


SPEC = EnvironmentSpec(
    name="long_reading", environment=LongReading, tasks=make_tasks, expert=make_expert
)
