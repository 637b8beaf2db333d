import pytest
from hypothesis import given, settings, strategies as st

from envs.messages import Message, Role, ToolCall, ToolParameter, ToolSpec
from rollout.renderer import Renderer
from rollout.tokenizer import Tokenizer
from rollout.tool_parser import FailureKind, ParseFailure, ToolParser

TOOLS = (
    ToolSpec(
        name="search", description="", parameters=(ToolParameter(name="query", type="string"),)
    ),
    ToolSpec(name="open", description="", parameters=(ToolParameter(name="hit", type="integer"),)),
    ToolSpec(name="submit", description=""),
)
TOKENIZER = Tokenizer.train(["search open submit gallium 1"], 280)
PARSER = ToolParser(TOKENIZER, TOOLS)


def tokens(*parts):
    token_ids = []
    for part in parts:
        token_ids += TOKENIZER.encode(part) if isinstance(part, str) else [part]
    return token_ids


CALL, ARG, END = TOKENIZER.call_id, TOKENIZER.arg_id, TOKENIZER.end_id


def kind_of(token_ids):
    failure = PARSER.parse(token_ids)
    assert isinstance(failure, ParseFailure)
    return failure.kind


def test_a_call_gets_typed_arguments():
    message = PARSER.parse(tokens(CALL, "open", ARG, "1", END))
    assert message == Message(
        role=Role.POLICY, tool_calls=(ToolCall(name="open", arguments={"hit": 1}),)
    )


def test_several_calls_and_the_text_before_them_are_kept():
    message = PARSER.parse(tokens("well", CALL, "search", ARG, "gallium", CALL, "submit", END))
    assert isinstance(message, Message)
    assert message.text == "well"
    assert [call.name for call in message.tool_calls] == ["search", "submit"]


@given(st.text(), st.integers())
@settings(max_examples=100, deadline=None)
def test_what_the_renderer_writes_the_parser_reads(query, hit):
    action = Message(
        role=Role.POLICY,
        text="",
        tool_calls=(
            ToolCall(name="search", arguments={"query": query}),
            ToolCall(name="open", arguments={"hit": hit}),
            ToolCall(name="submit", arguments={}),
        ),
    )
    (piece,) = Renderer(TOKENIZER, TOOLS).render_action(action)
    assert PARSER.parse(piece.token_ids) == action


def test_an_unknown_tool_is_told_to_the_policy_with_the_known_ones():
    failure = PARSER.parse(tokens(CALL, "serach", ARG, "gallium", END))
    assert isinstance(failure, ParseFailure)
    assert failure.kind is FailureKind.UNKNOWN_TOOL
    assert failure.kind.is_answerable
    assert failure.reason == "error: no tool 'serach'; there are: search, open, submit"
    assert failure.text == "<|call|> serach<|arg|> gallium<|end|>"


@pytest.mark.parametrize(
    "token_ids",
    [
        tokens(CALL, "open", END),
        tokens(CALL, "open", ARG, "one", END),
        tokens(CALL, "search", ARG, "a", ARG, "b", END),
        tokens(CALL, "submit", CALL, "open", END),
    ],
)
def test_bad_arguments_can_be_mended_by_the_policy(token_ids):
    assert kind_of(token_ids) is FailureKind.BAD_ARGUMENTS
    assert FailureKind.BAD_ARGUMENTS.is_answerable


@pytest.mark.parametrize(
    ("token_ids", "kind"),
    [
        ([], FailureKind.CUT_OFF),
        (tokens(CALL, "submit"), FailureKind.CUT_OFF),
        (tokens("hello", END), FailureKind.NO_CALL),
        ([END], FailureKind.NO_CALL),
        (tokens(CALL, "submit", TOKENIZER.tool_id, "3 of 3", END), FailureKind.MALFORMED),
        (tokens(CALL, "submit", END, END), FailureKind.MALFORMED),
        (tokens(ARG, "gallium", CALL, "submit", END), FailureKind.MALFORMED),
    ],
)
def test_what_is_no_message_of_the_format_is_named(token_ids, kind):
    assert kind_of(token_ids) is kind
    assert not kind.is_answerable


def test_text_is_a_message_where_there_are_no_tools():
    message = ToolParser(TOKENIZER, ()).parse(tokens("hello", END))
    assert message == Message(role=Role.POLICY, text="hello")


@given(st.lists(st.integers(min_value=0, max_value=1100), max_size=20))
@settings(max_examples=200, deadline=None)
def test_any_tokens_give_a_message_or_a_failure(token_ids):
    assert isinstance(PARSER.parse(token_ids), Message | ParseFailure)
    assert isinstance(PARSER.parse([*token_ids, END]), Message | ParseFailure)
