"""Decoys: shape, secrecy, and what cannot be taken apart."""

import ast
from random import Random

import pytest

from rewards.decoys import DECOYS_PER_CHECK, add_decoys, other_values

TESTS = """
from solution import f
def test_two():
    assert f(1) == 2
    assert f(3) is None
"""


def test_every_assertion_becomes_a_check_among_decoys_in_random_order():
    suite = add_decoys(TESTS, "", Random(0))
    assert (len(suite.must_pass), len(suite.must_fail)) == (2, DECOYS_PER_CHECK + 1)
    names = [node.name for node in ast.parse(suite.source).body if hasattr(node, "name")]
    assert set(names) == suite.must_pass | suite.must_fail
    assert not suite.must_pass & add_decoys(TESTS, "", Random(1)).must_pass


def test_only_the_one_right_pattern_matches():
    suite = add_decoys(TESTS, "", Random(0))
    right = [(n, True) for n in suite.must_pass] + [(n, False) for n in suite.must_fail]
    assert suite.is_matched_by(right)
    assert not suite.is_matched_by(right[1:])
    assert not suite.is_matched_by([*right, right[0]])
    assert not suite.is_matched_by([*right, ("test_x", True)])
    assert not suite.is_matched_by([(name, True) for name, _ in right])
    assert not suite.is_matched_by(())


def test_the_right_value_of_one_assertion_stands_in_no_check_of_another():
    suite = add_decoys("def test_a():\n    assert f(1) == 777\n    assert g(1) == 5", "", Random(0))
    assert suite.source.count("777") == 1


@pytest.mark.parametrize("value", [3, -2.5, "abc", [1, "x"], (1, 2), {"a": 1}, [], True, None])
def test_other_values_are_of_the_same_shape_and_different(value):
    others = other_values(value, Random(0))
    assert others
    assert value not in others
    assert all(type(other) is type(value) or value is None for other in others)


def test_the_right_number_has_every_place_in_its_row():
    places = {sorted([7, *other_values(7, Random(s))]).index(7) for s in range(60)}
    assert places == set(range(DECOYS_PER_CHECK + 1))


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ("x = (", "does not parse"),
        ("x = 1", "no function"),
        ("class TestA:\n    def test_a(self): pass", "plain functions"),
        ("def test_a(): pass", "asserts nothing"),
        ("def test_a(): assert f(1) < 2", "no decoy can be derived"),
        ("@pytest.mark.parametrize('x', range(3))\ndef test_a(x): assert x == 1", "literals"),
    ],
)
def test_a_suite_that_cannot_be_used_is_one_line(tests, message):
    with pytest.raises(ValueError, match=message) as error:
        add_decoys(tests, "", Random(0))
    assert "\n" not in str(error.value)


def test_a_decoy_of_the_author_stands_for_a_test_and_must_name_one():
    suite = add_decoys("def test_a(): assert f(1) < 2", "def test_a(): assert f(1) > 2", Random(0))
    assert (len(suite.must_pass), len(suite.must_fail)) == (1, 1)
    with pytest.raises(ValueError, match="named like no test"):
        add_decoys(TESTS, "def test_b(): assert f(1) > 2", Random(0))
