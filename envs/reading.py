"""Tools to find one's way in a dictionary: search, open a page, find a text in it.

A mixin: environments that let a policy read derive from `Reading` and call `start_reading` in
their `reset`. As in a printed dictionary, a page goes on with the articles that follow, so a long
page has to be looked through; its length is a parameter, and so sets how long an episode gets.
"""

from envs.corpora.foldoc import Article, Dictionary
from envs.corpora.walks import NUM_HITS
from envs.environment import ToolError

NUM_FINDS = 5
"""Lines that a find in a page shows."""
DEFAULT_PAGE_CHARACTERS = 1200


class Reading:
    """Search the dictionary, open a page, find a text in it."""

    _dictionary: Dictionary
    _page_characters: int
    _page: str = ""
    """The page that was opened last."""

    def _start_reading(self, dictionary: Dictionary, digest: str, page_characters: int) -> None:
        """Open a dictionary.

        Raises:
            ValueError: it is not the one that the task was made from.
        """
        self._dictionary = dictionary
        if self._dictionary.digest != digest:
            raise ValueError(
                f"the task was made from dictionary {digest}, "
                f"but {self._dictionary.digest} is installed"
            )
        self._page_characters = page_characters
        self._page = ""

    def search(self, query: str) -> str:
        """Search the dictionary; list the titles of the articles that fit best.

        Args:
            query: Words to look for.
        """
        hits = self._dictionary.index.search(query, NUM_HITS)
        return "\n".join(hit.title for hit in hits) or "no article"

    def open(self, title: str, page: int = 1) -> str:
        """Read a page that begins with an article; what follows it in the dictionary comes after.

        Args:
            title: A headword of the article.
            page: 1 is where the article begins; a long article goes on on the next pages.
        """
        article = self._dictionary.find(title)
        if article is None:
            raise ToolError(f"no article {title[:80]!r}")
        num_pages = count_pages(article, self._page_characters)
        if not 1 <= page <= num_pages:
            raise ToolError(f"the article {article.title!r} has pages 1 to {num_pages}")
        start = article.start + (page - 1) * self._page_characters
        self._page = self._dictionary.text[start : start + self._page_characters]
        return self._page

    def find_in_page(self, text: str) -> str:
        """List the lines of the open page that contain a text.

        Args:
            text: What to look for, without regard to case.
        """
        if not self._page:
            raise ToolError("no page is open")
        lines = [
            line.strip() for line in self._page.splitlines() if text.casefold() in line.casefold()
        ]
        more = f"\n({len(lines) - NUM_FINDS} more)" if len(lines) > NUM_FINDS else ""
        return "\n".join(lines[:NUM_FINDS]) + more or "not on this page"


def count_pages(article: Article, page_characters: int) -> int:
    """Count the pages on which an article stands."""
    return -(-len(article.text) // page_characters)
