"""The `cited_support` grader: is the answer right, and do the cited documents together prove it?

Takes an episode with the artifacts `value` and `documents`, returns 1 where both hold and 0
otherwise. An answer of several hops needs several statements: that the first article refers to
the second, that the second refers to the third, what date the third bears. Each of them has to
stand in a document that is cited. Whoever cites everything proves nothing: citations are counted.
"""

from collections.abc import Mapping, Sequence
from typing import cast

from envs.episode import Episode
from rewards.cited_answer import is_same_answer, is_stated
from rewards.reward import Outcome, Scored

MAX_CITATIONS_PER_STATEMENT = 2


async def grade(episode: Episode) -> Outcome:
    """Grade an episode.

    Args:
        episode: Artifacts `value`, and `documents`: titles. Reference `value`: the right one;
            `statements`: pairs of a title and a text that the document states; `documents`: title
            to text of these documents.

    Returns:
        Scored 1 or 0; its parts are `value_right` and `support`, the share of the statements that
        a cited document makes, 0 where more than two documents per statement are cited.
    """
    reference = episode.task.reference
    statements = cast("Sequence[tuple[str, str]]", reference["statements"])
    documents = cast("Mapping[str, str]", reference["documents"])
    value = str(episode.artifacts.get("value", ""))
    value_right = is_same_answer(value, str(reference["value"]))
    titles = episode.artifacts.get("documents")
    cited = {_normalize(str(title)) for title in titles} if isinstance(titles, list) else set()
    if len(cited) > MAX_CITATIONS_PER_STATEMENT * len(statements):
        cited = set()
    made = [
        _normalize(title) in cited and is_stated(text, documents[title])
        for title, text in statements
    ]
    return Scored(
        value=float(value_right and all(made)),
        parts={"value_right": float(value_right), "support": sum(made) / len(made)},
    )


def _normalize(title: str) -> str:
    return " ".join(title.casefold().split())
