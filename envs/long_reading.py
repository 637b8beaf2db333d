"""The `long_reading` environment: choose a volume once, then leaf through it for a hundred turns.

One episode (`>` is the policy):

    gallium: in which year was it discovered?
    > take(history)       year
    > read                H
    > skim                He
    ...
    > read                end

Five volumes hold a page about each element. Taking one shows whether it states the fact in
question; then it is leafed through to its end, one leaf a turn, read or skimmed, which makes no
difference. Only if the volume states the fact, the episode pays (`rewards/right_volume`).
So one early choice decides, the reply to it tells how it went, and all later choices are noise to
whatever credits a turn by the outcome: what the long-horizon run needs.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envs.elements import Element, load_elements
from envs.environment import EnvironmentSpec, Expert, Split, ToolError
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
        """Whether another volume has it too: descriptions often name the year."""
        description = element.pages.get("description")
        value = element.facts.get(self.key)
        return self.key == "year" and description is not None and str(value) in description.text


FACTS = ("year", "place", "symbol", "density")
"""Subjects that are keys of `Element.facts`."""
SUBJECTS = (
    Subject(key="year", phrase="in which year was it discovered?", volume="history"),
    Subject(key="place", phrase="in which country was it discovered?", volume="history"),
    Subject(key="symbol", phrase="how is it abbreviated?", volume="table"),
    Subject(key="density", phrase="how dense is it?", volume="table"),
    Subject(key="look", phrase="what does it look like?", volume="description"),
    Subject(key="purpose", phrase="what is it used for?", volume="uses"),
    Subject(key="origin", phrase="where is it found?", volume="sources"),
)


def list_contents(element: Element, volume: str) -> tuple[str, ...]:
    """List the keys of the subjects that a volume states of an element."""
    return tuple(
        subject.key
        for subject in SUBJECTS
        if subject.volume == volume and subject.is_stated_of(element)
    )


def make_tasks(
    split: Split, leaves: int = 100, subjects: Sequence[str] = tuple(each.key for each in SUBJECTS)
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
    known = {each.key: each for each in SUBJECTS}
    if not subjects or not set(subjects) <= set(known):
        raise ValueError(f"subjects = {list(subjects)}: there are {', '.join(known)}")
    asked = tuple(known[key] for key in subjects)
    return tuple(task for task in _every_task(leaves, asked) if split_of(task.id) is split)


def _every_task(leaves: int, subjects: Sequence[Subject]) -> Iterator[Task]:
    for element in load_elements().values():
        for subject in subjects:
            if subject.is_stated_of(element) and not subject.is_stated_elsewhere(element):
                yield Task(
                    id=f"long_reading/{element.name}-{subject.key}",
                    environment="envs.long_reading:SPEC",
                    grader="rewards.right_volume:grade",
                    data={
                        "question": f"{element.name}: {subject.phrase}",
                        "element": element.name,
                        "subject": subject.key,
                        "leaves": leaves,
                    },
                    reference={"volume": subject.volume},
                )


class LongReading:
    """Take a volume, then read or skim leaf after leaf."""

    def __init__(self) -> None:
        self._element = ""
        self._subject = ""
        self._volume = ""
        self._symbols: list[str] = []
        """What the leaves that are still to be turned show, the next one last."""

    def reset(self, question: str, element: str, subject: str, leaves: int) -> str:
        """Set the task: the question itself is the opening."""
        self._element = element
        self._subject = subject
        symbols = [each.facts["symbol"] for each in load_elements().values()]
        self._symbols = [*symbols[: leaves - 1], END][::-1]
        return question

    def take(self, volume: str) -> str:
        """Take a volume from the shelf, once; shows whether it states what was asked.

        Args:
            volume: table, history, description, uses or sources.
        """
        if self._volume:
            raise ToolError("one is taken")
        if volume not in VOLUMES:
            raise ToolError(f"the volumes are {', '.join(VOLUMES)}")
        self._volume = volume
        contents = list_contents(load_elements()[self._element], volume)
        return self._subject if self._subject in contents else NOTHING

    def read(self) -> str:
        """Read a leaf and turn it."""
        return self._turn()

    def skim(self) -> str:
        """Look over a leaf and turn it."""
        return self._turn()

    def done(self) -> bool:
        """Whether the last leaf is turned."""
        return not self._symbols

    def artifacts(self) -> dict[str, JsonValue]:
        """The volume that was leafed through to its end; nothing before that."""
        return {"volume": self._volume} if self.done() else {}

    def _turn(self) -> str:
        if not self._volume:
            raise ToolError("take a volume first")
        return self._symbols.pop()


def make_expert(task: Task, source: random.Random, diligence: float = 0.8) -> Expert:
    """Make a scripted policy that takes any volume, and leafs through it as befits what it found.

    Args:
        task: The task of the episode.
        source: Decides.
        diligence: Probability of reading a leaf of a volume that states the fact, and of skimming
            one of any other.
    """
    del task  # all that an expert may know is in the messages

    def act(messages: Sequence[Message]) -> Message:
        if len(messages) == 1:
            return _call("take", volume=source.choice(VOLUMES))
        is_found = messages[2].text != NOTHING
        return _call("read" if (source.random() < diligence) == is_found else "skim")

    return act


def _call(name: str, **arguments: JsonValue) -> Message:
    return Message(role=Role.POLICY, tool_calls=(ToolCall(name=name, arguments=arguments),))


SPEC = EnvironmentSpec(
    name="long_reading", environment=LongReading, tasks=make_tasks, expert=make_expert
)
