"""Faults put into a program: one at a time, and only where a program has a place for them."""

import pytest

from envs.corpora.mutants import list_mutants


@pytest.mark.parametrize(
    ("source", "mutants"),
    [
        ("a < b", ["a <= b"]),
        ("a != b", ["a == b"]),
        ("x in y", ["x not in y"]),
        ("a + b", ["a - b"]),
        ("a += b", ["a -= b"]),
        ("a and b", ["a or b"]),
        ("f(True)", ["f(False)"]),
        ("f(7)", ["f(8)"]),
        ("f('text', 1.5)", []),
        ("a < b < c", []),
    ],
)
def test_each_kind_of_fault(source, mutants):
    assert list_mutants(source) == [f"{mutant}\n" for mutant in mutants]


def test_a_mutant_has_one_fault():
    mutants = list_mutants("def f(a, b):\n    return a + 1 if a < b else b - 2")
    assert len(mutants) == 5
    assert len(set(mutants)) == 5
    assert "def f(a, b):\n    return a + 1 if a <= b else b - 2\n" in mutants


def test_what_does_not_parse_has_no_mutants():
    assert list_mutants("def f(") == []
    assert list_mutants("\0") == []
