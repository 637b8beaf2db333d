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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from envs.corpora.foldoc import Article, Dictionary, load_foldoc
from envs.environment import EnvironmentSpec, Expert, Split
from envs.messages import JsonValue, Message, Role, ToolCall
from envs.reading import DEFAULT_PAGE_CHARACTERS, NUM_HITS, Reading
from envs.task import Task
from envs.task_sets import split_of

MAX_OWNERS = 20
"""Articles that have a reference which may be a clue: a rarer one is found faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """A walk along references, from an article that two of its references single out."""

    clues: tuple[str, str]
    """References that only the first article has both of."""
    articles: tuple[Article, ...]
    references: tuple[int, ...]
    """Which reference leads from each article to the next; 1 is the first of its text."""

    @property
    def question(self) -> str:
        """What the policy reads."""
        first, second = self.clues
        numbers = ", then ".join(map(str, self.references))
        steps = f" From there follow reference number {numbers}." if self.references else ""
        return (
            f"Find the article that refers to both {{{first}}} and {{{second}}}.{steps} What date "
            "stands at the end of the last article? References are in braces; count them from the "
            "top of an article. Answer as YYYY-MM-DD and cite the titles of all articles on the "
            "way, the first and the last included."
        )

    @property
    def key(self) -> str:
        """The walk in one word, unique among the walks."""
        return f"{self.articles[0].title}-{'.'.join(map(str, self.references))}".replace(" ", "_")

    @property
    def statements(self) -> list[tuple[str, str]]:
        """What proves the answer: pairs of a title, and what that article has to say."""
        steps = zip(self.articles[:-1], self.references, strict=True)
        links = [(article.title, article.references[number - 1]) for article, number in steps]
        last = self.articles[-1]
        start = self.articles[0].title
        return [*((start, clue) for clue in self.clues), *links, (last.title, last.date or "")]


def draw_walks(dictionary: Dictionary, hops: int, count: int) -> Iterator[Walk]:
    """Draw different walks, always the same ones.

    Args:
        dictionary: What to walk in.
        hops: References to follow.
        count: Walks.

    Raises:
        ValueError: the dictionary does not have that many of that length.
    """
    source = random.Random(f"{hops} hops in {dictionary.digest}")
    owners = _owners_of_references(dictionary)
    starts = [article for article in dictionary.articles if len(set(article.references)) > 1]
    keys: set[str] = set()
    for _ in range(20 * count):
        if len(keys) == count:
            return
        found = _draw_steps(dictionary, source.choice(starts), hops, source)
        clues = found and _draw_clues(dictionary, found[0][0], owners, source)
        if found and clues:
            walk = Walk(clues=clues, articles=found[0], references=found[1])
            if walk.key not in keys:
                keys.add(walk.key)
                yield walk
    if len(keys) < count:
        raise ValueError(f"the dictionary has {len(keys)} walks of {hops} hops, not {count}")


def _draw_steps(
    dictionary: Dictionary, start: Article, hops: int, source: random.Random
) -> tuple[tuple[Article, ...], tuple[int, ...]] | None:
    """Draw a way without a repeated article to one that bears a date.

    A dead end is left backwards and not entered again.

    Returns:
        The articles and the numbers of the references between them; None where there is no way.
    """
    articles, references = [start], []
    seen = {start.title}
    while len(references) < hops:
        is_last = len(references) == hops - 1
        steps = [
            (number, target)
            for number, target in enumerate(dictionary.links[articles[-1].title], start=1)
            if target is not None and target.title not in seen
            if not is_last or target.date is not None
        ]
        if steps:
            number, target = source.choice(steps)
            references.append(number)
            articles.append(target)
            seen.add(target.title)
        elif references:
            references.pop()
            articles.pop()
        else:
            return None
    return (tuple(articles), tuple(references)) if articles[-1].date is not None else None


def _draw_clues(
    dictionary: Dictionary, start: Article, owners: dict[str, set[str]], source: random.Random
) -> tuple[str, str] | None:
    """Draw two references that single out an article, and with which a search finds it."""
    names = [name for name in start.references if len(owners[name.casefold()]) <= MAX_OWNERS]
    names = sorted({name.casefold(): name for name in names}.values())
    if len(names) < 2:
        return None
    first, second = source.sample(names, 2)
    if len(owners[first.casefold()] & owners[second.casefold()]) > 1:
        return None
    hits = dictionary.index.search(f"{first} {second}", NUM_HITS)
    return (first, second) if start.title in {hit.title for hit in hits} else None


def _owners_of_references(dictionary: Dictionary) -> dict[str, set[str]]:
    """Map each reference to the titles of the articles that have it."""
    owners: dict[str, set[str]] = {}
    for article in dictionary.articles:
        for reference in article.references:
            owners.setdefault(reference.casefold(), set()).add(article.title)
    return owners


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
        data={"question": walk.question, "digest": digest, "page_characters": page_characters},
        reference={
            "value": walk.articles[-1].date,
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
        self._start_reading(digest, page_characters)
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
    statements = cast("Sequence[tuple[str, str]]", task.reference["statements"])
    clues = " ".join(text for _, text in statements[:2])

    def act(messages: Sequence[Message]) -> Message:
        num_done = sum(message.role is Role.POLICY for message in messages)
        if num_done == 0:
            return _call("search", query=clues)
        if num_done <= len(titles):
            return _call("open", title=titles[num_done - 1])
        return _call("answer", value=task.reference["value"], documents=[*titles])

    return act


def _call(name: str, **arguments: JsonValue) -> Message:
    return Message(role=Role.POLICY, tool_calls=(ToolCall(name=name, arguments=arguments),))


SPEC = EnvironmentSpec(
    name="encyclopedia", environment=Encyclopedia, tasks=make_tasks, expert=make_expert
)
