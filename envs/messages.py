"""Messages between a policy, a user and tools: the text every environment speaks.

Worked example (one turn of a retrieval episode):

    Message(role=Role.USER, text="When was gallium discovered?")
    Message(role=Role.POLICY, tool_calls=(ToolCall(name="search", arguments={"query": "gallium"}),))
    Message(role=Role.TOOL, text="1 gallium history", tool_name="search")
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

JsonScalar = str | int | float | bool | None
JsonValue = JsonScalar | list["JsonValue"] | dict[str, "JsonValue"]


class Role(StrEnum):
    """Who a message is from."""

    USER = "user"
    POLICY = "policy"
    TOOL = "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call that the policy wrote, its arguments already typed by the tool's schema."""

    name: str
    arguments: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolParameter:
    """One parameter of a tool."""

    name: str
    type: str
    """JSON schema type: string, integer, number, boolean, array or object."""
    description: str = ""
    is_required: bool = True
    is_nullable: bool = False
    """Whether null may be written."""
    item_type: str = ""
    """JSON schema type of an array's items; empty: any."""
    choices: tuple[JsonScalar, ...] = ()
    """The values that may be written; empty: all of the type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """What a policy is told of a tool: derived from a method's signature and docstring."""

    name: str
    description: str
    parameters: tuple[ToolParameter, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. Only POLICY messages carry tool calls; only TOOL messages name a tool.

    Raises:
        ValueError: the fields do not fit the role.
    """

    role: Role
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_name: str | None = None

    def __post_init__(self) -> None:
        if self.tool_calls and self.role is not Role.POLICY:
            raise ValueError(f"a {self.role} message cannot carry tool calls")
        if (self.tool_name is not None) != (self.role is Role.TOOL):
            raise ValueError(f"tool_name={self.tool_name!r} does not fit a {self.role} message")
