"""A small dictionary in dictd's format, in the place of the real one."""

import gzip
import random

import pytest

DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
NUM_ARTICLES = 120


def encode_number(number):
    digits = ""
    while True:
        number, digit = divmod(number, 64)
        digits = DIGITS[digit] + digits
        if not number:
            return digits


def write_dictionary(folder, articles):
    """Write articles, headwords to body, as `foldoc.dict.dz` and `foldoc.index`."""
    folder.mkdir(parents=True, exist_ok=True)
    content, entries = b"", ["00-database-short\tA\tB"]
    for headwords, body in articles.items():
        text = f"{headwords}\n\n{body}\n\n".encode()
        place = f"{encode_number(len(content))}\t{encode_number(len(text))}"
        entries += [f"{name}\t{place}" for name in headwords.split("%%%")]
        content += text
    (folder / "foldoc.dict.dz").write_bytes(gzip.compress(content))
    (folder / "foldoc.index").write_text("\n".join(entries) + "\n", encoding="utf-8")


def invent_articles():
    """Invent articles that refer to each other and bear dates."""
    source = random.Random(0)
    names = [f"term{number}" for number in range(NUM_ARTICLES)]
    articles = {}
    for number, name in enumerate(names):
        references = source.sample([other for other in names if other != name], 4)
        words = " ".join(f"{{{reference}}} and word{number}." for reference in references)
        date = f"{source.randint(1985, 2020)}-{source.randint(1, 12):02}-{source.randint(1, 28):02}"
        filler = " ".join(f"filler{source.randint(0, 99)}" for _ in range(20))
        articles[f"{name}%%%alias of {name}"] = (
            f"   <topic> About {words}\n   {{nowhere}}\n   {filler}\n\n   ({date})"
        )
    return articles


@pytest.fixture
def dictionary(tmp_path, monkeypatch):
    """Install the small dictionary, and forget what was made of another one."""
    from envs import encyclopedia, fact_code
    from envs.corpora import foldoc

    def forget():
        foldoc.read_dictionary.cache_clear()
        encyclopedia.make_tasks.cache_clear()
        fact_code.make_tasks.cache_clear()

    write_dictionary(tmp_path / "dictd", invent_articles())
    monkeypatch.setattr(foldoc, "SYSTEM_FOLDER", tmp_path / "dictd")
    forget()
    yield foldoc.load_foldoc()
    forget()


@pytest.fixture
def write_foldoc(tmp_path):
    """Write a dictionary into the test's folder; what was read before is forgotten."""
    from envs.corpora.foldoc import read_dictionary

    def write(articles):
        read_dictionary.cache_clear()
        write_dictionary(tmp_path, articles)

    return write
