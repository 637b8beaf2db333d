"""The dictionary: its format, its references, and what is said where it is missing."""

import gzip

import pytest

from envs.corpora import foldoc
from envs.corpora.foldoc import load_foldoc, read_dictionary

BROKEN_LINE = "term\tnot base 64!\tA\n"


def test_an_article_is_found_by_each_headword_in_any_case(dictionary):
    article = dictionary.find("term7")
    assert article is not None
    assert article.title == "term7"
    assert dictionary.find("ALIAS  of Term7") is article
    assert dictionary.find("term700") is None


def test_references_are_read_from_the_top_and_those_to_nowhere_count(dictionary):
    article = dictionary.find("term7")
    assert len(article.references) == 5
    assert article.references[-1] == "nowhere"
    assert dictionary.links["term7"][-1] is None
    assert all(dictionary.links["term7"][:4])


def test_a_reference_that_goes_over_a_line_is_one(tmp_path, write_foldoc):
    write_foldoc({"a": "   see {operating\n   system}"})
    (article,) = read_dictionary(tmp_path, "foldoc").articles
    assert article.references == ("operating system",)


@pytest.mark.parametrize(
    ("body", "date"),
    [
        ("   text\n\n   (1995-05-05)", "1995-05-05"),
        ("   born 1990-01-01\n\n   (1995-05-05)", None),
        ("   (1995-05-05) and more", None),
        ("   text", None),
    ],
)
def test_only_a_single_date_at_the_end_is_the_articles(tmp_path, write_foldoc, body, date):
    write_foldoc({"a": body})
    assert read_dictionary(tmp_path, "foldoc").find("a").date == date


def test_articles_stand_in_the_text_where_they_say(dictionary):
    for article in dictionary.articles[::10]:
        assert dictionary.text[article.start :].startswith(article.text)


def test_the_first_headword_is_told_from_a_broken_line_by_the_index(tmp_path, write_foldoc):
    write_foldoc({"Ada Lovelace%%%Lovelace, Ada": "   text"})
    content = gzip.decompress((tmp_path / "foldoc.dict.dz").read_bytes())
    # As the package has it where the line is long: the separator became an end of line.
    content = content.replace(b"Lovelace%%%", b"Lovelace\n  ")
    (tmp_path / "foldoc.dict.dz").write_bytes(gzip.compress(content))
    read_dictionary.cache_clear()
    assert read_dictionary(tmp_path, "foldoc").find("lovelace, ada").title == "Ada Lovelace"


def test_the_digest_changes_with_the_text(tmp_path, write_foldoc):
    write_foldoc({"a": "   one"})
    first = read_dictionary(tmp_path, "foldoc").digest
    write_foldoc({"a": "   two"})
    assert read_dictionary(tmp_path, "foldoc").digest != first


def test_a_missing_dictionary_is_one_line_that_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(foldoc, "SYSTEM_FOLDER", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ValueError, match="not installed: `make corpora`"):
        load_foldoc()


def test_a_broken_index_names_its_line(tmp_path, write_foldoc):
    write_foldoc({"a": "   one"})
    index = tmp_path / "foldoc.index"
    index.write_text(index.read_text() + BROKEN_LINE)
    with pytest.raises(ValueError, match=r"foldoc\.index:3: not an entry"):
        read_dictionary(tmp_path, "foldoc")


def test_a_file_that_is_not_gzip_is_one_line(tmp_path, write_foldoc):
    write_foldoc({"a": "   one"})
    (tmp_path / "foldoc.dict.dz").write_bytes(b"no gzip")
    with pytest.raises(ValueError, match="cannot be read"):
        read_dictionary(tmp_path, "foldoc")
