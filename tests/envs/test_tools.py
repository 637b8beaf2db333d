"""Tools: schemas from signatures, arguments from texts, replies from calls."""

import asyncio
import threading
import time
from typing import Literal

import pytest
from hypothesis import given, settings, strategies as st

from envs import tools
from envs.environment import EnvironmentFailure
from envs.messages import ToolCall
from envs.tools import ToolError, call_tool, parse_arguments, tool_specs


class Shop:
    """An environment with tools of every kind."""

    limit = 3

    def reset(self):
        return "welcome"

    def done(self):
        return False

    def close(self):
        pass

    def step(self):
        """Never a tool: a reserved name."""

    def reward(self):
        """Never a tool: a reserved name."""

    def _price(self, item):
        return len(item)

    def buy(self, item: str, count: int, note: str | None = None) -> str:
        """Buy something.

        Args:
            item: What to buy,
                by its name.
            count: How many.
            note: For the seller.
        """
        return f"{count} {item}{note or ''}"

    async def weigh(self, mass: float, exact: bool = False) -> str:
        """Weigh something."""
        return f"{mass} {exact}"

    def pack(self, items: list[str], options: dict[str, int]) -> str:
        return " ".join(items) + str(options)

    def refuse(self) -> str:
        raise ToolError("closed on Sundays")

    def crash(self) -> str:
        raise KeyError("till")

    async def give_up(self) -> str:
        raise TimeoutError("the till did not answer")

    async def wait(self) -> str:
        await asyncio.sleep(30)
        return "done"

    def block(self) -> str:
        time.sleep(0.3)
        return "done"

    def count(self) -> int:
        return 3

    def shout(self) -> str:
        return "x" * 5000


SPECS = {spec.name: spec for spec in tool_specs(Shop)}


async def call(name, timeout_seconds=5.0, max_characters=2000, **arguments):
    call = ToolCall(name=name, arguments=arguments)
    return await call_tool(Shop(), call, timeout_seconds, max_characters)


def test_public_methods_are_tools_in_the_order_they_are_written():
    assert list(SPECS) == [
        "buy",
        "weigh",
        "pack",
        "refuse",
        "crash",
        "give_up",
        "wait",
        "block",
        "count",
        "shout",
    ]
    assert tool_specs(Shop()) == tool_specs(Shop)


def test_a_schema_comes_from_the_signature_and_the_docstring():
    buy = SPECS["buy"]
    assert buy.description == "Buy something."
    assert [(p.name, p.type, p.is_required) for p in buy.parameters] == [
        ("item", "string", True),
        ("count", "integer", True),
        ("note", "string", False),
    ]
    assert [p.description for p in buy.parameters] == [
        "What to buy, by its name.",
        "How many.",
        "For the seller.",
    ]
    assert [p.type for p in SPECS["weigh"].parameters] == ["number", "boolean"]
    assert [p.type for p in SPECS["pack"].parameters] == ["array", "object"]


def test_tools_of_a_base_class_count_and_may_be_overridden():
    class Corner(Shop):
        def buy(self, item: str) -> str:
            """Buy one."""
            return item

    specs = {spec.name: spec for spec in tool_specs(Corner)}
    assert set(specs) == set(SPECS)
    assert len(specs["buy"].parameters) == 1


async def test_a_class_is_described_once_whatever_its_instances_are_asked(monkeypatch):
    class Kiosk(Shop):
        """A class that no other test has described."""

    described = []
    describe = tools.describe_method

    def count(name, method):
        described.append(name)
        return describe(name, method)

    monkeypatch.setattr(tools, "describe_method", count)
    for _ in range(3):
        kiosk = Kiosk()
        assert tool_specs(kiosk) == tool_specs(Shop)
        for _ in range(2):
            call = ToolCall(name="buy", arguments={"item": "tea", "count": 1})
            assert await call_tool(kiosk, call) == "1 tea"
    assert described == [spec.name for spec in tool_specs(Shop)]


def test_a_parameter_that_no_policy_can_write_is_an_error():
    class Bad:
        def look(self, where: object) -> str:
            return "x"

    with pytest.raises(ValueError, match=r"look\(where\)"):
        tool_specs(Bad)


def test_texts_become_arguments_by_position():
    assert parse_arguments(SPECS["buy"], ["7", "7"]) == {"item": "7", "count": 7}
    assert parse_arguments(SPECS["weigh"], ["2", "true"]) == {"mass": 2, "exact": True}
    assert parse_arguments(SPECS["pack"], ['["a"]', '{"b": 1}']) == {
        "items": ["a"],
        "options": {"b": 1},
    }


@pytest.mark.parametrize(
    ("tool", "texts", "message"),
    [
        ("buy", ["a"], "needs count"),
        ("buy", ["a", "b"], "count must be integer"),
        ("buy", ["a", "1.5"], "count must be integer"),
        ("buy", ["a", "true"], "count must be integer"),
        ("buy", ["a", "1", "b", "c"], "takes 3 arguments, not 4"),
        ("weigh", ["[" * 100_000], "mass must be number"),
        ("pack", ["{}", "{}"], "items must be array"),
    ],
)
def test_bad_texts_are_named(tool, texts, message):
    with pytest.raises(ToolError, match=message):
        parse_arguments(SPECS[tool], texts)


@given(st.lists(st.text(), max_size=4))
@settings(max_examples=50, deadline=None)
def test_any_text_is_parsed_or_refused(texts):
    for spec in SPECS.values():
        try:
            arguments = parse_arguments(spec, texts)
        except ToolError:
            continue
        assert len(arguments) == len(texts)


async def test_sync_and_async_tools_reply():
    assert await call("buy", item="tea", count=2) == "2 tea"
    assert await call("weigh", mass=1.5) == "1.5 False"


async def test_the_policys_mistakes_are_replies():
    assert (await call("sell")).startswith("error: no tool 'sell'; there are: buy, weigh")
    assert await call("buy", item="tea") == "error: buy(item, count, note) needs count"
    assert await call("buy", item="tea", count="2") == "error: count must be integer"
    assert await call("refuse") == "error: closed on Sundays"
    assert (await call("_price", item="tea")).startswith("error: no tool '_price'")
    assert (await call("reset")).startswith("error: no tool 'reset'")


async def test_the_environments_mistakes_are_failures():
    with pytest.raises(EnvironmentFailure, match=r"Shop\.crash raised KeyError: 'till'"):
        await call("crash")
    with pytest.raises(EnvironmentFailure, match="returned int, not text"):
        await call("count")
    with pytest.raises(EnvironmentFailure, match="raised TimeoutError: the till did not answer"):
        await call("give_up")


@pytest.mark.parametrize("name", ["wait", "block"])
async def test_a_slow_tool_is_answered_with_an_error(name):
    assert await call(name, timeout_seconds=0.05) == f"error: {name} took longer than 0.05 s"


async def test_sync_tools_of_two_episodes_run_at_once():
    meeting = threading.Barrier(2)

    class Meeting:
        def meet(self) -> str:
            meeting.wait(timeout=30)
            return "met"

    calls = (call_tool(Meeting(), ToolCall(name="meet"), 30.0) for _ in range(2))
    assert await asyncio.gather(*calls) == ["met", "met"]


async def test_a_long_reply_is_cut_and_says_so():
    assert await call("shout", max_characters=10) == "x" * 10 + "\n(cut: 5000 characters)"


async def test_a_tool_that_leaks_a_stop_iteration_fails_at_once():
    class Leaky:
        def look(self) -> str:
            """Look."""
            return next(iter(()))

    with pytest.raises(EnvironmentFailure, match="StopIteration"):
        await call_tool(Leaky(), ToolCall(name="look"), timeout_seconds=60)


class Board:
    """Tools with every type that a policy can write."""

    def reset(self):
        return ""

    @staticmethod
    def helper(text: str) -> str:
        """Never a tool."""
        return text

    def move(
        self,
        piece: Literal["rook", "king"],
        squares: list[int],
        speed: float | None = None,
        times: Literal[1, 2] = 1,
    ) -> str:
        """Move a piece."""
        return f"{piece} {squares} {speed} {times}"


@pytest.mark.parametrize(
    ("arguments", "reply"),
    [
        ({"piece": "rook", "squares": [1, 2]}, "rook [1, 2] None 1"),
        ({"piece": "king", "squares": [], "speed": 2, "times": 2}, "king [] 2 2"),
        ({"piece": "king", "squares": [], "speed": None}, "king [] None 1"),
        ({"piece": "pawn", "squares": []}, "error: piece must be one of rook, king"),
        ({"piece": "rook", "squares": [1, "a"]}, "error: squares[1] must be integer"),
        ({"piece": "rook", "squares": [True]}, "error: squares[0] must be integer"),
        ({"piece": "rook", "squares": 3}, "error: squares must be array"),
        ({"piece": "rook", "squares": [], "speed": "x"}, "error: speed must be number"),
        ({"piece": "rook", "squares": [], "times": 3}, "error: times must be one of 1, 2"),
        ({"piece": "rook", "squares": [], "times": None}, "error: times must be integer"),
        ({"piece": "rook"}, "error: move(piece, squares, speed, times) needs squares"),
    ],
)
async def test_arguments_are_held_against_their_types(arguments, reply):
    assert await call_tool(Board(), ToolCall(name="move", arguments=arguments)) == reply


def test_static_methods_are_no_tools_and_open_argument_lists_are_refused():
    class Open:
        def take(self, **anything) -> str:
            """Take."""
            return ""

    assert [spec.name for spec in tool_specs(Board)] == ["move"]
    with pytest.raises(ValueError, match=r"take\(anything\) takes any number of arguments"):
        tool_specs(Open)


async def test_ten_megabytes_are_cut_and_torn_bytes_are_mended():
    class Loud:
        def dump(self) -> str:
            """Dump."""
            return "\udcff" + "x" * 10_000_000

    reply = await call_tool(Loud(), ToolCall(name="dump"), max_characters=10)
    assert reply == "?xxxxxxxxx\n(cut: 10000001 characters)"
