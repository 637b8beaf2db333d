"""The corpus of the `retrieval` environment: what the package `mendeleev` knows of 118 elements.

Returns elements and the pages about them. The package's database is read directly: importing the
package would load far more than its texts.
"""

import importlib.util
import sqlite3
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from envs.search_index import Document

DIRECTIONS = ("left", "right", "above", "below")
"""Neighbours in the periodic table."""

_QUERY = """
SELECT lower(name) AS name, symbol, atomic_number AS number, group_id AS "group", period, density,
       discovery_year AS year, discovery_location AS place, discoverers, name_origin AS origin,
       description, uses, sources
FROM elements ORDER BY atomic_number
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """One element: its facts as short texts, its neighbours, and its pages."""

    name: str
    facts: Mapping[str, str]
    """Those of symbol, group, period, density, year and place that have one clean value."""
    neighbours: Mapping[str, str]
    """Direction to the name of the element there, where there is one."""
    pages: Mapping[str, Document]
    """Kind (`table`, `history`, `description`, `uses`, `sources`) to the page."""


@lru_cache(maxsize=1)
def load_elements() -> Mapping[str, Element]:
    """Load the elements, by name, in the order of their atomic numbers.

    Raises:
        RuntimeError: the package `mendeleev` is not installed.
    """
    rows = list(_read_rows())
    elements = {}
    for row in rows:
        facts = dict(_facts(row))
        neighbours = dict(_neighbours(row, rows))
        pages = {
            kind: Document(title=f"{row['name']}: {kind}", text=text)
            for kind, text in _texts(row, facts, neighbours)
        }
        elements[row["name"]] = Element(
            name=row["name"], facts=facts, neighbours=neighbours, pages=pages
        )
    return elements


def _read_rows() -> Iterator[dict]:
    package = importlib.util.find_spec("mendeleev")
    if package is None or package.origin is None:
        raise RuntimeError("the corpus is missing: pip install --no-deps mendeleev")
    path = Path(package.origin).with_name("elements.db")
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        database.row_factory = sqlite3.Row
        for row in database.execute(_QUERY):
            yield {name: _plain(row[name]) for name in row.keys()}  # noqa: SIM118 (no mapping)


def _plain(value: object) -> object:
    """Write letters without their accents, and white space as single blanks."""
    if not isinstance(value, str):
        return value
    letters = unicodedata.normalize("NFKD", value.replace("\N{SUPERSCRIPT TWO}", "2"))
    return " ".join(letters.encode("ascii", "ignore").decode().split())


def _facts(row: dict) -> Iterator[tuple[str, str]]:
    yield "symbol", row["symbol"]
    yield "period", str(row["period"])
    if row["group"] is not None:
        yield "group", str(row["group"])
    if row["density"] is not None and row["density"] >= 0.5:
        yield "density", f"{row['density']:.3g}"
    if row["year"] is not None:
        yield "year", str(row["year"])
    if row["place"] is not None and "/" not in row["place"]:
        yield "place", row["place"]


def _neighbours(row: dict, rows: list[dict]) -> Iterator[tuple[str, str]]:
    by_number = {other["number"]: other for other in rows}
    for direction, step in (("left", -1), ("right", 1)):
        other = by_number.get(row["number"] + step)
        if other is not None and other["period"] == row["period"]:
            yield direction, other["name"]
    for direction, step in (("above", -1), ("below", 1)):
        for other in rows:
            place = (other["group"], other["period"])
            if row["group"] is not None and place == (row["group"], row["period"] + step):
                yield direction, other["name"]


def _texts(
    row: dict, facts: Mapping[str, str], neighbours: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Write the pages. Table and history begin with what is asked for most."""
    table = {**{key: facts[key] for key in ("symbol", "group", "density") if key in facts}}
    table.update(neighbours)
    yield "table", " ".join(f"{key}: {value}." for key, value in table.items())
    found = ", ".join(str(row[key]) for key in ("year", "place") if row[key] is not None)
    yield "history", ". ".join(filter(None, (found, row["discoverers"], row["origin"])))
    for kind in ("description", "uses", "sources"):
        if row[kind]:
            yield kind, row[kind]
