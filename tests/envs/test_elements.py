"""The corpus of elements."""

import sys

from envs.elements import load_elements


def test_the_corpus_is_read_without_importing_its_package():
    assert len(load_elements()) == 118
    assert "mendeleev" not in sys.modules


def test_facts_and_neighbours_are_those_of_the_periodic_table():
    gallium = load_elements()["gallium"]
    assert gallium.facts == {
        "symbol": "Ga",
        "period": "4",
        "group": "13",
        "density": "5.91",
        "year": "1875",
        "place": "France",
    }
    assert gallium.neighbours == {
        "left": "zinc",
        "right": "germanium",
        "above": "aluminum",
        "below": "indium",
    }
    assert gallium.pages["table"].text == (
        "symbol: Ga. group: 13. density: 5.91. left: zinc. right: germanium. above: aluminum. "
        "below: indium."
    )
    assert gallium.pages["history"].text.startswith("1875, France. Paul Emile Lecoq de Boisb")


def test_neighbours_point_back():
    elements = load_elements()
    for name, element in elements.items():
        for here, there in (("left", "right"), ("above", "below")):
            if here in element.neighbours:
                assert elements[element.neighbours[here]].neighbours[there] == name


def test_facts_without_one_clean_value_are_left_out():
    elements = load_elements()
    assert "year" not in elements["gold"].facts, "known to the ancients"
    assert "place" not in elements["helium"].facts, "two countries"
    assert "group" not in elements["cerium"].facts
    assert "density" not in elements["neon"].facts, "a gas"


def test_pages_are_ascii_and_titled_by_name_and_kind():
    pages = [page for element in load_elements().values() for page in element.pages.values()]
    assert len(pages) > 570
    assert all(page.text and page.text.isascii() for page in pages)
    assert len({page.title for page in pages}) == len(pages)
