"""The search index."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings, strategies as st

from envs.search_index import Document, SearchIndex

INDEX = SearchIndex(
    [
        Document(title="gallium: uses", text="Semiconductors. It melts in the hand."),
        Document(title="gallium: history", text="Discovered in 1875 in France."),
        Document(title="indium: uses", text="Solder, and alloys with gallium."),
        Document(title="indium: history", text="Discovered in 1863."),
    ]
)


def titles(query, limit=4):
    return [document.title for document in INDEX.search(query, limit)]


def test_the_title_weighs_more_than_the_text():
    assert titles("gallium")[2] == "indium: uses"
    assert titles("gallium: history")[0] == "gallium: history"


def test_words_are_stemmed_and_case_does_not_matter():
    assert titles("DISCOVERING") == titles("discovered") == ["indium: history", "gallium: history"]
    assert titles("melting") == ["gallium: uses"]


def test_stop_words_are_not_searched():
    assert titles("in the") == []
    assert titles("where is it") == []


def test_ties_keep_the_order_of_the_documents():
    index = SearchIndex([Document(title=f"same {letter}", text="x y") for letter in "abc"])
    assert [document.title for document in index.search("x", 2)] == ["same a", "same b"]


@given(st.text(max_size=40))
@settings(max_examples=100, deadline=None)
def test_any_query_is_answered(query):
    assert len(INDEX.search(query, 3)) <= 3


@pytest.mark.parametrize("query", ['"', "uses AND", "title:gallium", "ga*", "NEAR(a b)", "", "()"])
def test_the_query_language_of_the_database_is_out_of_reach(query):
    assert isinstance(INDEX.search(query, 3), list)


def test_threads_may_share_an_index():
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(titles, ["gallium", "history"] * 50))
    assert results == [titles("gallium"), titles("history")] * 50


def test_titles_must_be_unique():
    with pytest.raises(ValueError, match="same title"):
        SearchIndex([Document(title="a", text="b"), Document(title="a", text="c")])
