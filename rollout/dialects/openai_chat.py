"""OpenAI's chat completions, `POST /v1/chat/completions`, whole or as a stream."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from envs.messages import ToolCall
from rollout.chat import (
    MODEL,
    ChatReply,
    ChatRequest,
    History,
    RequestError,
    read_limit,
    read_tool,
    refuse,
    require,
)

PATH = "/v1/chat/completions"
_ACCEPTED = {
    "n": (1,),
    "stop": ([],),
    "logprobs": (False,),
    "logit_bias": ({},),
    "tool_choice": ("auto",),
    "response_format": ({"type": "text"},),
    "functions": ([],),
}


def read_request(body: Mapping[str, Any]) -> ChatRequest:
    """Read a request.

    Raises:
        RequestError: it is malformed, or wants what cannot be done.
    """
    refuse(body, _ACCEPTED)
    history = History()
    for message in require(body, "messages", list):
        role = message.get("role")
        text = read_text(message.get("content"))
        if role in ("system", "developer", "user"):
            history.add_user(text)
        elif role == "assistant":
            calls = [_read_call(call) for call in message.get("tool_calls") or ()]
            history.add_policy(text, calls)
        elif role == "tool":
            history.add_result(require(message, "tool_call_id", str), text)
        else:
            raise RequestError(f"no role {role!r}")
    functions = [require(tool, "function", dict) for tool in body.get("tools") or ()]
    return ChatRequest(
        messages=history.finish(),
        tools=tuple(
            read_tool(each.get("name"), each.get("description"), each.get("parameters"))
            for each in functions
        ),
        max_tokens=read_limit(body, "max_completion_tokens", "max_tokens"),
    )


def write_reply(reply: ChatReply) -> dict[str, Any]:
    """Write a whole reply."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.message.text or None}
    if reply.calls:
        message["tool_calls"] = [_write_call(*call) for call in reply.calls]
    return {
        "id": f"chatcmpl-{reply.id}",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [
            {"index": 0, "message": message, "finish_reason": _finish(reply), "logprobs": None}
        ],
        "usage": _usage(reply),
    }


def write_stream(reply: ChatReply) -> Iterator[tuple[str, Any]]:
    """Write a reply as server-sent events: `(event, data)`, no event's name where it is empty."""
    delta: dict[str, Any] = {"role": "assistant", "content": reply.message.text or None}
    if reply.calls:
        delta["tool_calls"] = [
            {"index": index, **_write_call(*call)} for index, call in enumerate(reply.calls)
        ]
    chunk = {
        "id": f"chatcmpl-{reply.id}",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": MODEL,
    }
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    yield "", {**chunk, "choices": [choice]}
    yield "", {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(reply)}]}
    yield "", {**chunk, "choices": [], "usage": _usage(reply)}
    yield "", "[DONE]"


def write_error(message: str, code: str) -> dict[str, Any]:
    """Write an error."""
    return {"error": {"message": message, "type": code, "code": code, "param": None}}


def read_text(content: object) -> str:
    """Read a message's content: a text, parts of it, or nothing.

    Raises:
        RequestError: a part is no text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content if isinstance(content, list) else [content]:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            raise RequestError("the policy reads text alone")
        texts.append(part["text"])
    return "".join(texts)


def read_arguments(text: object) -> dict[str, Any]:
    """Read a call's arguments, which are JSON in a text.

    Raises:
        RequestError: they are not.
    """
    try:
        arguments = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise RequestError("the arguments of a tool call are no JSON object")
    return arguments


def _read_call(call: Mapping[str, Any]) -> tuple[str, ToolCall]:
    function = require(call, "function", dict)
    arguments = read_arguments(function.get("arguments"))
    name = require(function, "name", str)
    return require(call, "id", str), ToolCall(name=name, arguments=arguments)


def _write_call(call_id: str, call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(dict(call.arguments))}
    return {"id": call_id, "type": "function", "function": function}


def _finish(reply: ChatReply) -> str:
    if reply.is_cut:
        return "length"
    return "tool_calls" if reply.calls else "stop"


def _usage(reply: ChatReply) -> dict[str, int]:
    prompt, sampled = reply.num_prompt_tokens, reply.num_sampled_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }
