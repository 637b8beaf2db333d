"""A search index over documents: BM25 by SQLite's FTS5, in memory.

Takes documents, returns the best ones for a query. Titles weigh more than texts, stop words of a
query are dropped, words are stemmed, and ties keep the order of the documents: the same query
gives the same result in every process.
"""

import re
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass

TITLE_WEIGHT = 20.0
"""How much more a word counts in a title than in a text."""
_STOP_WORDS = """
a an and are as at be by do does for from has have how in is it its of on or that the then there
this to was were what when where which who with
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Words that say nothing about what is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A document of a corpus."""

    title: str
    """Unique in its corpus: what a citation names."""
    text: str


class SearchIndex:
    """Ranks the documents of a corpus. Threads may share it.

    Worked example:

        index = SearchIndex([Document(title="gallium: uses", text="Used in semiconductors.")])
        index.search("what is gallium used for?", limit=3)[0].title    "gallium: uses"
    """

    def __init__(self, documents: Sequence[Document]) -> None:
        """Index documents.

        Raises:
            ValueError: two documents have one title.
        """
        self._documents = tuple(documents)
        if len({document.title for document in documents}) < len(documents):
            raise ValueError("two documents have the same title")
        self._lock = threading.Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute(
            "CREATE VIRTUAL TABLE pages USING fts5(title, body, tokenize = 'porter unicode61')"
        )
        self._database.executemany(
            "INSERT INTO pages(rowid, title, body) VALUES (?, ?, ?)",
            [(row, document.title, document.text) for row, document in enumerate(documents)],
        )

    def search(self, query: str, limit: int) -> list[Document]:
        """Find the documents with the highest BM25 score for any of the query's words.

        Args:
            query: Free text; only its words matter.
            limit: Documents, at most.

        Returns:
            Documents, best first; none where no word of the query occurs.
        """
        words = [word for word in re.findall(r"\w+", query.lower()) if word not in STOP_WORDS]
        if not words:
            return []
        match = " OR ".join(f'"{word}"' for word in words)
        with self._lock:
            rows = self._database.execute(
                "SELECT rowid FROM pages WHERE pages MATCH ? "
                "ORDER BY bm25(pages, ?, 1.0), rowid LIMIT ?",
                (match, TITLE_WEIGHT, limit),
            ).fetchall()
        return [self._documents[row] for (row,) in rows]

    def close(self) -> None:
        """Free the database."""
        self._database.close()
