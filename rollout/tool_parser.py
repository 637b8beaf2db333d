"""Sampled tokens to a message: what the policy wrote, as typed tool calls or as a named failure.

Takes the tokens of one turn, `<|end|>` included; returns a `Message`, or a `ParseFailure` as data.
A call of an unknown tool or with bad arguments is answered with an error, and the episode goes on;
what is no message of the format ends it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from envs.messages import Message, Role, ToolCall, ToolSpec
from envs.tools import ToolError, parse_arguments
from rollout.tokenizer import Tokenizer


class FailureKind(StrEnum):
    """What is wrong with a policy message."""

    UNKNOWN_TOOL = "unknown_tool"
    BAD_ARGUMENTS = "bad_arguments"
    NO_CALL = "no_call"
    """Text alone, where the environment has tools."""
    MALFORMED = "malformed"
    """A marker that only the renderer may write, or an argument before any call."""
    CUT_OFF = "cut_off"
    """No end token: a budget ran out in the middle of the message."""

    @property
    def is_answerable(self) -> bool:
        """Whether an error reply lets the policy try again."""
        return self in (FailureKind.UNKNOWN_TOOL, FailureKind.BAD_ARGUMENTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseFailure:
    """A policy message that asks for nothing that can be done."""

    kind: FailureKind
    reason: str
    """One line; where the failure is answerable, it is what the policy is told."""
    text: str
    """What the policy wrote, markers included."""
    tool_name: str = ""
    """The tool that the failing call names."""


class _CallError(Exception):
    """A call that the environment does not offer."""

    def __init__(self, kind: FailureKind, tool_name: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.tool_name = tool_name
        self.reason = reason


class ToolParser:
    """Parses the policy messages of one environment.

    Worked example (`<..>` are special tokens):

        parser.parse([<call>, " search", <arg>, " gallium", <end>])
        -> Message(role=Role.POLICY,
                   tool_calls=(ToolCall(name="search", arguments={"query": "gallium"}),))
    """

    def __init__(
        self, tokenizer: Tokenizer, tools: Sequence[ToolSpec], *, takes_text: bool = False
    ) -> None:
        """Parse calls of these tools, and plain text where the environment takes it as well."""
        self._takes_text = takes_text or not tools
        self._tokenizer = tokenizer
        self._tools = {tool.name: tool for tool in tools}

    def parse(self, token_ids: Sequence[int]) -> Message | ParseFailure:
        """Parse one turn.

        Args:
            token_ids: What the policy sampled, in order.

        Returns:
            The message, or what is wrong with it. Several calls stand or fall together.
        """
        tokenizer = self._tokenizer
        written = tokenizer.decode_all(token_ids).strip()
        if not token_ids or token_ids[-1] != tokenizer.end_id:
            return ParseFailure(kind=FailureKind.CUT_OFF, reason="no end token", text=written)
        body = token_ids[:-1]
        allowed = (tokenizer.call_id, tokenizer.arg_id)
        if any(token in tokenizer.special_ids and token not in allowed for token in body):
            return ParseFailure(
                kind=FailureKind.MALFORMED, reason="a forged role marker", text=written
            )
        text, *calls = split(body, tokenizer.call_id)
        if tokenizer.arg_id in text:
            return ParseFailure(
                kind=FailureKind.MALFORMED, reason="an argument before any call", text=written
            )
        if not calls and not self._takes_text:
            return ParseFailure(kind=FailureKind.NO_CALL, reason="no tool call", text=written)
        try:
            tool_calls = tuple(self._parse_call(call) for call in calls)
        except _CallError as error:
            return ParseFailure(
                kind=error.kind, reason=error.reason, text=written, tool_name=error.tool_name
            )
        return Message(role=Role.POLICY, text=tokenizer.decode(text), tool_calls=tool_calls)

    def _parse_call(self, token_ids: Sequence[int]) -> ToolCall:
        """Parse `name <arg> text <arg> text`."""
        parts = split(token_ids, self._tokenizer.arg_id)
        name, *texts = (self._tokenizer.decode(part) for part in parts)
        tool = self._tools.get(name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            reason = f"error: no tool {name[:40]!r}; there are: {known}"
            raise _CallError(FailureKind.UNKNOWN_TOOL, name, reason)
        try:
            arguments = parse_arguments(tool, texts)
        except (ToolError, ValueError) as error:
            reason = f"error: {error}"
            raise _CallError(FailureKind.BAD_ARGUMENTS, name, reason) from error
        return ToolCall(name=name, arguments=arguments)


def split(token_ids: Sequence[int], separator: int) -> list[list[int]]:
    """Split tokens at a separator, which is left out; always gives at least one part."""
    parts: list[list[int]] = [[]]
    for token_id in token_ids:
        if token_id == separator:
            parts.append([])
        else:
            parts[-1].append(token_id)
    return parts
