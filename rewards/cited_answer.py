"""The `cited_answer` grader: is the answer right, and does the cited document say so?

Takes an episode with the artifacts `value` and `document`, returns 1 where both hold and 0
otherwise. A right value with a wrong citation is a guess, and pays nothing.
"""

import re
from collections.abc import Mapping
from typing import cast

from envs.episode import Episode
from rewards.reward import Outcome, Scored


async def grade(episode: Episode) -> Outcome:
    """Grade an episode.

    Args:
        episode: Artifacts `value` and `document` (a title). Reference `value`: the right one;
            `documents`: title to text of the documents that may be cited.

    Returns:
        Scored 1 or 0; its parts are `value_right` and `citation_right`.
    """
    value = str(episode.artifacts.get("value", ""))
    title = _normalize(str(episode.artifacts.get("document", "")))
    expected = str(episode.task.reference["value"])
    documents = cast("Mapping[str, str]", episode.task.reference["documents"])
    texts = {_normalize(known): text for known, text in documents.items()}
    value_right = is_same_answer(value, expected)
    citation_right = title in texts and is_stated(expected, texts[title])
    return Scored(
        value=float(value_right and citation_right),
        parts={"value_right": float(value_right), "citation_right": float(citation_right)},
    )


def is_same_answer(value: str, expected: str) -> bool:
    """Compare two answers: numbers by value, other texts without regard to case and blanks."""
    numbers = [_as_number(text) for text in (value, expected)]
    if None not in numbers:
        return numbers[0] == numbers[1]
    return _normalize(value) == _normalize(expected)


def is_stated(value: str, text: str) -> bool:
    """Whether a text contains a value as a whole: `13` is not in `1913`, nor in `13.5`."""
    return bool(
        re.search(rf"(?<![\w.]){re.escape(_normalize(value))}(?!\w|\.\d)", _normalize(text))
    )


def _as_number(text: str) -> float | None:
    """Read a plain decimal number; None where the text is anything else."""
    return (
        float(text) if re.fullmatch(r"\s*[-+]?\d{1,18}(\.\d{1,18})?\s*", text, re.ASCII) else None
    )


def _normalize(text: str) -> str:
    return " ".join(text.casefold().split())
