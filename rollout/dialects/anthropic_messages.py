"""Anthropic's messages, `POST /v1/messages`, whole or as a stream."""

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

PATH = "/v1/messages"
_ACCEPTED = {
    "stop_sequences": ([],),
    "tool_choice": ({"type": "auto"},),
    "thinking": ({"type": "disabled"},),
}


def read_request(body: Mapping[str, Any]) -> ChatRequest:
    """Read a request.

    Raises:
        RequestError: it is malformed, or wants what cannot be done.
    """
    refuse(body, _ACCEPTED)
    history = History()
    if body.get("system"):
        history.add_user(_read_text(body["system"]))
    for message in require(body, "messages", list):
        content = require(message, "content", (str, list))
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if message.get("role") == "assistant":
            _read_policy(blocks, history)
        else:
            _read_user(blocks, history)
    return ChatRequest(
        messages=history.finish(),
        tools=tuple(
            read_tool(tool.get("name"), tool.get("description"), tool.get("input_schema"))
            for tool in body.get("tools") or ()
        ),
        max_tokens=read_limit(body, "max_tokens"),
    )


def write_reply(reply: ChatReply) -> dict[str, Any]:
    """Write a whole reply."""
    return {**_head(reply), "content": _blocks(reply), "stop_reason": _stop_reason(reply)}


def write_stream(reply: ChatReply) -> Iterator[tuple[str, Any]]:
    """Write a reply as server-sent events: `(event, data)`."""
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**_head(reply), "content": [], "stop_reason": None}}
    ]
    for index, block in enumerate(_blocks(reply)):
        if block["type"] == "text":
            empty = {**block, "text": ""}
            delta = {"type": "text_delta", "text": block["text"]}
        else:
            empty = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        events += [
            {"type": "content_block_start", "index": index, "content_block": empty},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    end = {"stop_reason": _stop_reason(reply), "stop_sequence": None}
    usage = {"output_tokens": reply.num_sampled_tokens}
    events += [
        {"type": "message_delta", "delta": end, "usage": usage},
        {"type": "message_stop"},
    ]
    for event in events:
        yield event["type"], event


def write_error(message: str, code: str) -> dict[str, Any]:
    """Write an error."""
    return {"type": "error", "error": {"type": code, "message": message}}


def _read_policy(blocks: list[Any], history: History) -> None:
    texts, calls = [], []
    for block in blocks:
        if block.get("type") == "tool_use":
            arguments = require(block, "input", dict)
            call = ToolCall(name=require(block, "name", str), arguments=arguments)
            calls.append((require(block, "id", str), call))
        else:
            texts.append(_read_text([block]))
    history.add_policy("".join(texts), calls)


def _read_user(blocks: list[Any], history: History) -> None:
    """Read tool results, each a message of its own, and the texts after or between them."""
    for block in blocks:
        if block.get("type") == "tool_result":
            text = _read_text(block.get("content") or "")
            history.add_result(require(block, "tool_use_id", str), text)
        else:
            history.add_user(_read_text([block]))


def _read_text(content: object) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for block in content if isinstance(content, list) else [content]:
        if not isinstance(block, Mapping) or block.get("type") != "text":
            raise RequestError("the policy reads text alone")
        texts.append(require(block, "text", str))
    return "".join(texts)


def _head(reply: ChatReply) -> dict[str, Any]:
    return {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "stop_sequence": None,
        "usage": {
            "input_tokens": reply.num_prompt_tokens,
            "output_tokens": reply.num_sampled_tokens,
        },
    }


def _blocks(reply: ChatReply) -> list[dict[str, Any]]:
    text = reply.message.text
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    blocks += [
        {"type": "tool_use", "id": call_id, "name": call.name, "input": dict(call.arguments)}
        for call_id, call in reply.calls
    ]
    return blocks


def _stop_reason(reply: ChatReply) -> str:
    if reply.is_cut:
        return "max_tokens"
    return "tool_use" if reply.calls else "end_turn"
