"""Chat requests and replies, whatever API they came through: what the gateway's dialects share."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envs.messages import Message, Role, ToolCall, ToolParameter, ToolSpec

MODEL = "policy"
"""The one model that the gateway serves; requests may name any."""


class RequestError(Exception):
    """A request that cannot be answered; one line for whoever wrote the program."""

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid_request") -> None:
        """Say what is wrong.

        Args:
            message: One line.
            status: Of HTTP. Clients give up at 400 and try again from 500 on.
            code: For programs.
        """
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """What a program asks: the whole history each time, as these APIs want it."""

    messages: tuple[Message, ...]
    """System messages are user messages: the policy's format has no role for them."""
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int | None = None
    """Sampled tokens, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    """What the policy answered."""

    id: str
    """Unique in the rollout; ids of tool calls derive from it."""
    message: Message
    is_cut: bool
    """Whether a budget ended it."""
    num_prompt_tokens: int
    num_sampled_tokens: int

    @property
    def calls(self) -> list[tuple[str, ToolCall]]:
        """Tool calls with their ids."""
        return [(f"call_{self.id}_{i}", call) for i, call in enumerate(self.message.tool_calls)]


class History:
    """Collects the messages of a request, and finds out which tool a result belongs to."""

    def __init__(self) -> None:
        """Begin empty."""
        self.messages: list[Message] = []
        self._tools: dict[str, str] = {}

    def add_user(self, text: str) -> None:
        """Add a message of a user or of the system."""
        self.messages.append(Message(role=Role.USER, text=text))

    def add_policy(self, text: str, calls: Iterable[tuple[str, ToolCall]] = ()) -> None:
        """Add an earlier message of the policy; calls come with their ids."""
        calls = list(calls)
        self._tools |= {call_id: call.name for call_id, call in calls}
        tool_calls = tuple(call for _, call in calls)
        self.messages.append(Message(role=Role.POLICY, text=text, tool_calls=tool_calls))

    def add_result(self, call_id: str, text: str) -> None:
        """Add what a tool returned.

        Raises:
            RequestError: no earlier message called it.
        """
        if call_id not in self._tools:
            raise RequestError(f"a tool's result answers no call: {call_id[:80]!r}")
        tool_name = self._tools[call_id]
        self.messages.append(Message(role=Role.TOOL, text=text, tool_name=tool_name))

    def finish(self) -> tuple[Message, ...]:
        """Return the messages.

        Raises:
            RequestError: there is none, or the last is the policy's own.
        """
        if not self.messages or self.messages[-1].role is Role.POLICY:
            raise RequestError("the last message must be a user's or a tool's")
        return tuple(self.messages)


def require(body: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> Any:  # noqa: ANN401
    """Take a field of a request.

    Raises:
        RequestError: it is missing or of another type.
    """
    value = body.get(name)
    if not isinstance(value, kind):
        raise RequestError(f"field {name!r} is missing or of the wrong type")
    return value


def refuse(body: Mapping[str, Any], accepted: Mapping[str, Sequence[object]]) -> None:
    """Refuse what would change the answer and cannot be done.

    Args:
        body: The request.
        accepted: The values that a field may have, beside null and being absent.

    Raises:
        RequestError: a field has another value.
    """
    for name, values in accepted.items():
        value = body.get(name)
        if value is not None and value not in values:
            raise RequestError(f"this gateway cannot do {name} = {str(value)[:80]}")


def read_limit(body: Mapping[str, Any], *names: str) -> int | None:
    """Read the first limit of sampled tokens that is given.

    Raises:
        RequestError: it is no positive integer.
    """
    for name in names:
        value = body.get(name)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise RequestError(f"{name} is no positive integer")
            return value
    return None


def read_tool(name: object, description: object, schema: object) -> ToolSpec:
    """Read a tool from its JSON schema; the parameters stay in the order in which they stand.

    Raises:
        RequestError: it has no name, or its schema is no object.
    """
    if not isinstance(name, str) or not isinstance(schema, Mapping | None):
        raise RequestError("a tool needs a name and a schema of its parameters")
    schema = schema or {}
    required = schema.get("required", [])
    return ToolSpec(
        name=name,
        description=str(description or ""),
        parameters=tuple(
            ToolParameter(
                name=parameter,
                type=_read_type(details),
                description=str(details.get("description", "")),
                is_required=parameter in required,
            )
            for parameter, details in schema.get("properties", {}).items()
        ),
    )


def _read_type(schema: Mapping[str, Any]) -> str:
    """The type of a parameter that is not null; `string` where the schema names none."""
    for choice in schema.get("anyOf", [schema]):
        kinds = choice.get("type", "string")
        for kind in [kinds] if isinstance(kinds, str) else kinds:
            if kind != "null":
                return kind
    return "string"
