"""Calling a function that nobody trusts: plain values come out, or the name of an error."""

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from envs.function_calls import CallResult, call_function, is_same_value

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


async def test_each_input_gives_a_value_or_an_error():
    source = "def f(xs): return [x * 2 for x in xs] if xs else xs[0]"
    results = await call_function(source, "f", [[1, 2.5], []])
    assert results == (CallResult(value=[2, 5.0]), CallResult(error="IndexError"))
    assert type(results[0].value[0]) is int


@pytest.mark.parametrize("value", [None, True, False, 3, -2.5, 'a\n\u00e9"', [1, [2, []]]])
async def test_plain_values_come_back_as_they_were(value):
    (result,) = await call_function("def f(x): return x", "f", [value])
    assert result.error is None
    assert is_same_value(result.value, value)


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("def f(x): return (x,)", "TypeError"),
        ("def f(x): return {x}", "TypeError"),
        ("class N(int): pass\ndef f(x): return N(x)", "TypeError"),
        ("def f(x):\n    y = []\n    y.append(y)\n    return y", "RecursionError"),
        ("def g(x): return x", "KeyError"),
        ("def f(x) return x", "SyntaxError"),
        ("import sys\ndef f(x): sys.exit(0)", "SystemExit"),
        ("def f(x): return f(x)", "RecursionError"),
        ("def f(x): return float('nan')", "no result"),
        ("def f(x): return 10 ** 4400", "ValueError"),
        ("import os\ndef f(x): os._exit(0)", "no result"),
        ("while True: pass", "timeout"),
    ],
)
async def test_what_is_no_plain_value_has_a_named_error(source, error):
    results = await call_function(source, "f", [1])
    assert [result.error for result in results] == [error]


async def test_what_a_function_prints_is_not_taken_for_its_value():
    source = "print('[7, null]')\ndef f(x):\n    print('[8, null]')\n    return x"
    assert await call_function(source, "f", [1]) == (CallResult(value=1),)


async def test_a_function_keeps_no_hold_on_the_inputs_of_later_calls():
    source = "def f(xs):\n    xs.append(9)\n    return len(xs)"
    results = await call_function(source, "f", [[1], [1]])
    assert [result.value for result in results] == [2, 2]


@given(PLAIN)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_value_is_the_same_as_itself(value):
    assert is_same_value(value, value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1.0),
        (True, 1),
        (0, False),
        ("1", 1),
        ([1], [1, 2]),
        ([1, 2], [2, 1]),
        ({"a": 1}, {"b": 1}),
        (None, 0),
        (1.0, 1.001),
        (float("nan"), float("nan")),
    ],
)
def test_another_value_or_type_is_not_the_same(value, expected):
    assert not is_same_value(value, expected)


def test_floats_have_a_tolerance():
    assert is_same_value([0.1 + 0.2], [0.3])
