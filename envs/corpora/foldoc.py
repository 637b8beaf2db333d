"""FOLDOC, the Free On-line Dictionary of Computing: some 12,000 articles that refer to each other.

Takes the files of the Debian package `dict-foldoc` (`make corpora`, or `apt install dict-foldoc`),
returns a `Dictionary`. Its format, dictd's: a gzip file with the text of all articles, and an index
of lines `headword<TAB>offset<TAB>length`, the numbers in base 64.

An article refers to others by `{headword}`, and most end with the date of their last change:

    BCPL

       <language> (Basic CPL) A British systems language developed by
       Richards in 1969 and descended from {CPL} ...

       (2001-10-12)
"""

import gzip
import hashlib
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from envs.cache import cache_folder
from envs.search_index import Document, SearchIndex

SYSTEM_FOLDER = Path("/usr/share/dictd")
"""Where the Debian package puts its files."""
HOW_TO_INSTALL = (
    "the dictionary FOLDOC is not installed: `make corpora`, or apt install dict-foldoc"
)
_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Article:
    """One article of a dictionary."""

    title: str
    """Its first headword."""
    start: int
    """Where it begins in the text of the dictionary, in characters."""
    text: str
    """With the line of its headwords."""

    @property
    def references(self) -> tuple[str, ...]:
        """What stands in braces, from the top; some of it names no article."""
        found = re.findall(r"\{([^{}]+)\}", self.text)
        return tuple(" ".join(reference.split()) for reference in found)

    @property
    def date(self) -> str | None:
        """The date at its end, `2001-10-12`; None where there is none, or more than one."""
        found = re.findall(r"\b[12]\d{3}-[01]\d-[0-3]\d\b", self.text)
        is_at_end = re.search(r"\(([12]\d{3}-[01]\d-[0-3]\d)\)\s*$", self.text)
        return found[0] if is_at_end and len(found) == 1 else None


class Dictionary:
    """Articles by headword, their text in one piece, and an index of their words.

    Worked example:

        dictionary = load_foldoc()
        dictionary.find("bcpl").title                          "BCPL"
        dictionary.index.search("language Richards", 1)        the document "BCPL"
    """

    def __init__(self, articles: Sequence[Article], headwords: dict[str, Article]) -> None:
        self.articles = tuple(articles)
        self._headwords = headwords
        self.text = "".join(article.text for article in articles)

    def find(self, headword: str) -> Article | None:
        """Find an article by any of its headwords, without regard to case and blanks."""
        return self._headwords.get(_normalize(headword))

    @cached_property
    def links(self) -> Mapping[str, tuple[Article | None, ...]]:
        """Title to what each of the article's references leads to; None where to nothing."""
        return {
            article.title: tuple(map(self.find, article.references)) for article in self.articles
        }

    @cached_property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that change with the text."""
        return hashlib.sha256(self.text.encode("utf-8")).hexdigest()[:16]

    @cached_property
    def index(self) -> SearchIndex:
        """The index of all articles."""
        return SearchIndex([Document(title=a.title, text=a.text) for a in self.articles])


def load_foldoc() -> Dictionary:
    """Load the dictionary, once per process.

    Raises:
        ValueError: one line: it is not installed, or its files are broken.
    """
    for folder in (SYSTEM_FOLDER, cache_folder() / "dictd"):
        if (folder / "foldoc.dict.dz").is_file():
            return read_dictionary(folder, "foldoc")
    raise ValueError(HOW_TO_INSTALL)


@lru_cache(maxsize=2)
def read_dictionary(folder: Path, name: str) -> Dictionary:
    """Read a dictionary in dictd's format.

    Args:
        folder: Holds `<name>.dict.dz` and `<name>.index`.
        name: Of the dictionary.

    Raises:
        ValueError: one line: a file is missing or broken.
    """
    try:
        content = gzip.decompress((folder / f"{name}.dict.dz").read_bytes())
        entries = (folder / f"{name}.index").read_text(encoding="utf-8").splitlines()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"{folder}: dictionary {name!r} cannot be read: {error}") from None
    places: dict[tuple[int, int], list[str]] = {}
    for number, entry in enumerate(entries, start=1):
        try:
            headword, offset, length = entry.split("\t")
            place = _parse_number(offset), _parse_number(length)
        except ValueError:
            raise ValueError(f"{folder / name}.index:{number}: not an entry") from None
        if not headword.startswith("00-database"):
            places.setdefault(place, []).append(headword)
    return _collect(content, places)


def make_dictionary(articles: Sequence[tuple[str, str]]) -> Dictionary:
    """Make a dictionary of titles and texts; where a title comes again, its text is left out."""
    found: dict[str, Article] = {}
    start = 0
    for title, body in articles:
        text = f"{title}\n\n{body.strip()}\n\n"
        if _normalize(title) not in found:
            found[_normalize(title)] = Article(title=title, start=start, text=text)
            start += len(text)
    return Dictionary([*found.values()], found)


def _collect(content: bytes, places: dict[tuple[int, int], list[str]]) -> Dictionary:
    articles: list[Article] = []
    headwords: dict[str, Article] = {}
    start = 0
    for offset, length in sorted(places):
        text = content[offset : offset + length].decode("utf-8", "replace").strip() + "\n\n"
        names = places[offset, length]
        text = text.replace("%%%", "\n")
        article = Article(title=_find_title(text, names), start=start, text=text)
        if _normalize(article.title) in headwords:
            continue  # a title has to lead to one article
        for name in (article.title, *names):
            headwords.setdefault(_normalize(name), article)
        articles.append(article)
        start += len(text)
    return Dictionary(articles, headwords)


def _find_title(text: str, names: Sequence[str]) -> str:
    """Find the first headword: long lines of headwords are broken, so the index has to help."""
    line = " ".join(text.partition("\n\n")[0].split())
    known = [len(name) for name in map(_normalize, names) if _normalize(line).startswith(name)]
    return line[: max(known)] if known else line


def _parse_number(digits: str) -> int:
    number = 0
    for digit in digits:
        number = number * 64 + _DIGITS.index(digit)
    return number


def _normalize(headword: str) -> str:
    return " ".join(headword.casefold().split())
