"""Walks along the references of a dictionary: ways to a fact that are right by construction.

Takes a dictionary, returns `Walk`s. Each begins at an article that two of its references single
out, so that it has to be searched for, and ends at one that bears a date.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from envs.corpora.foldoc import Article, Dictionary

NUM_HITS = 8
"""Titles that a search for the clues lists: the first article is among them."""
Steps = tuple[tuple[Article, ...], tuple[int, ...]]
"""Articles, and the numbers of the references between them."""
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
    def directions(self) -> str:
        """The way in words, without a title."""
        first, second = self.clues
        numbers = ", then ".join(map(str, self.references))
        steps = f" From there follow reference number {numbers}." if self.references else ""
        return f"Find the article that refers to both {{{first}}} and {{{second}}}.{steps}"

    @property
    def date(self) -> str:
        """The fact at its end: the date of the last article."""
        date = self.articles[-1].date
        assert date is not None  # or the walk would not have been drawn
        return date

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
        return [*links, (last.title, self.date)]


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
        clues = found and _draw_clues(dictionary, found, owners, source)
        if found and clues:
            walk = Walk(clues=clues, articles=found[0], references=found[1])
            if walk.key not in keys:
                keys.add(walk.key)
                yield walk
    if len(keys) < count:
        raise ValueError(f"the dictionary has {len(keys)} walks of {hops} hops, not {count}")


def _draw_steps(
    dictionary: Dictionary, start: Article, hops: int, source: random.Random
) -> Steps | None:
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
    dictionary: Dictionary, steps: Steps, owners: dict[str, set[str]], source: random.Random
) -> tuple[str, str] | None:
    """Draw two references that single out the first article, and with which a search finds it."""
    start = steps[0][0]
    # Where the way goes on has to be read, not to be guessed from the question.
    told = {
        article.references[number - 1].casefold() for article, number in zip(*steps, strict=False)
    }
    names = [
        name
        for name in start.references
        if len(owners[name.casefold()]) <= MAX_OWNERS and name.casefold() not in told
    ]
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
