"""Call a function that nobody trusts and get plain values back.

Takes the source of a function and its inputs, returns one value or error per input. The function
runs in a sandbox that holds the inputs alone: no expected value and no verdict is ever inside, so
there is nothing to find and nothing to forge. Values cross as JSON, and the caller compares.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from envs.messages import JsonValue
from envs.sandbox import SandboxLimits, run_python

RELATIVE_TOLERANCE = 1e-9
"""Of floats that count as the same."""

_WORKER = """
import os, sys
channel = os.dup(1)
os.dup2(2, 1)
source, name, inputs = eval(sys.stdin.read())

def encode(value):
    kind = type(value)
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if kind is int or kind is float:
        return repr(value)
    if kind is list:
        return "[" + ", ".join([encode(item) for item in value]) + "]"
    if kind is dict and set(map(type, value)) <= {str}:
        pairs = [encode(key) + ": " + encode(item) for key, item in value.items()]
        return "{" + ", ".join(pairs) + "}"
    if kind is str:
        from _json import encode_basestring_ascii
        return encode_basestring_ascii(value)
    raise TypeError("returned " + kind.__name__)

lines = []
scope = {"__name__": "solution"}
try:
    exec(compile(source, "solution", "exec"), scope)
    function, error = scope[name], None
except BaseException as raised:
    error = type(raised).__name__
for value in inputs:
    problem, result = error, "null"
    if problem is None:
        try:
            result = encode(function(value))
        except BaseException as raised:
            problem = type(raised).__name__
    lines.append("[" + result + ", " + encode(problem) + "]")
os.write(channel, "\\n".join(lines).encode())
os._exit(0)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """What one call gave."""

    value: JsonValue = None
    error: str | None = None
    """Name of the exception, or `timeout`, or `no result`; None where there is a value."""


async def call_function(
    source: str, name: str, inputs: Sequence[JsonValue], limits: SandboxLimits | None = None
) -> tuple[CallResult, ...]:
    """Call a function on each input, all in one fresh sandbox.

    Args:
        source: Python text that defines the function.
        name: Name of the function; it takes one argument.
        inputs: Plain values.
        limits: Of the sandbox, for all calls together.

    Returns:
        One result per input, in order.

    Raises:
        SandboxError: the sandbox could not be set up.
    """
    result = await run_python(_WORKER, stdin=repr((source, name, list(inputs))), limits=limits)
    if result.timed_out:
        return (CallResult(error="timeout"),) * len(inputs)
    results = _parse(result.stdout)
    if len(results) != len(inputs):
        return (CallResult(error="no result"),) * len(inputs)
    return results


def _parse(stdout: bytes) -> tuple[CallResult, ...]:
    """Read the worker's lines; empty where they are not what an honest worker writes."""
    try:
        pairs = [json.loads(line) for line in stdout.decode("ascii").split("\n")]
        return tuple(CallResult(value=value, error=error) for value, error in pairs)
    except (ValueError, TypeError, RecursionError):
        return ()


def is_same_value(value: JsonValue, expected: JsonValue) -> bool:
    """Compare plain values: the same types all the way down, floats within a tolerance."""
    if type(value) is not type(expected):
        return False
    if isinstance(value, float) and isinstance(expected, float):
        return math.isclose(value, expected, rel_tol=RELATIVE_TOLERANCE, abs_tol=RELATIVE_TOLERANCE)
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(is_same_value, value, expected))
    if isinstance(value, dict) and isinstance(expected, dict):
        return value.keys() == expected.keys() and all(
            is_same_value(item, expected[key]) for key, item in value.items()
        )
    return value == expected
