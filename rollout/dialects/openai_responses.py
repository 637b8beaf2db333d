"""OpenAI's responses, `POST /v1/responses`, whole or as a stream, with the history in each."""

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
from rollout.dialects.openai_chat import read_arguments, read_text, write_error

__all__ = ["PATH", "read_request", "write_error", "write_reply", "write_stream"]

PATH = "/v1/responses"
_ACCEPTED = {
    "previous_response_id": (),
    "conversation": (),
    "background": (False,),
    "tool_choice": ("auto",),
    "text": ({"format": {"type": "text"}}, {}),
}


def read_request(body: Mapping[str, Any]) -> ChatRequest:
    """Read a request.

    Raises:
        RequestError: it is malformed, or wants what cannot be done.
    """
    refuse(body, _ACCEPTED)
    history = History()
    if body.get("instructions"):
        history.add_user(require(body, "instructions", str))
    given = require(body, "input", (str, list))
    _read_items([{"role": "user", "content": given}] if isinstance(given, str) else given, history)
    for tool in body.get("tools") or ():
        if tool.get("type") != "function":
            raise RequestError(f"no tools of type {tool.get('type')!r}, only functions")
    return ChatRequest(
        messages=history.finish(),
        tools=tuple(
            read_tool(tool.get("name"), tool.get("description"), tool.get("parameters"))
            for tool in body.get("tools") or ()
        ),
        max_tokens=read_limit(body, "max_output_tokens"),
    )


def write_reply(reply: ChatReply) -> dict[str, Any]:
    """Write a whole reply."""
    return _response(reply, "incomplete" if reply.is_cut else "completed", _items(reply))


def write_stream(reply: ChatReply) -> Iterator[tuple[str, Any]]:
    """Write a reply as server-sent events: `(event, data)`."""
    whole = write_reply(reply)
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": _response(reply, "in_progress", [])}
    ]
    for index, item in enumerate(whole["output"]):
        place = {"item_id": item["id"], "output_index": index}
        events.append(
            {"type": "response.output_item.added", "output_index": index, "item": _empty(item)}
        )
        if item["type"] == "message":
            part, text = {**place, "content_index": 0}, item["content"][0]["text"]
            empty = {**item["content"][0], "text": ""}
            events += [
                {"type": "response.content_part.added", **part, "part": empty},
                {"type": "response.output_text.delta", **part, "delta": text, "logprobs": []},
                {"type": "response.output_text.done", **part, "text": text, "logprobs": []},
                {"type": "response.content_part.done", **part, "part": item["content"][0]},
            ]
        else:
            arguments = item["arguments"]
            kind = "response.function_call_arguments"
            events += [
                {"type": f"{kind}.delta", **place, "delta": arguments},
                {"type": f"{kind}.done", **place, "name": item["name"], "arguments": arguments},
            ]
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": f"response.{whole['status']}", "response": whole})
    for number, event in enumerate(events):
        yield event["type"], {**event, "sequence_number": number}


def _read_items(items: list[Any], history: History) -> None:
    """Read the history; a message of the policy and the calls after it are one message."""
    text: str | None = None
    calls: list[tuple[str, ToolCall]] = []

    def end_policy() -> None:
        nonlocal text
        if text is not None or calls:
            history.add_policy(text or "", calls)
        text = None
        calls.clear()

    for item in items:
        kind = item.get("type", "message")
        if kind == "message" and item.get("role") == "assistant":
            if calls or text is not None:
                end_policy()
            text = read_text(item.get("content"))
        elif kind == "function_call":
            arguments = read_arguments(item.get("arguments"))
            call = ToolCall(name=require(item, "name", str), arguments=arguments)
            calls.append((require(item, "call_id", str), call))
        elif kind == "function_call_output":
            end_policy()
            history.add_result(require(item, "call_id", str), read_text(item.get("output")))
        elif kind == "message":
            end_policy()
            history.add_user(read_text(item.get("content")))
        else:
            raise RequestError(f"no items of type {kind!r}")
    end_policy()


def _response(reply: ChatReply, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    prompt, sampled = reply.num_prompt_tokens, reply.num_sampled_tokens
    return {
        "id": f"resp_{reply.id}",
        "object": "response",
        "created_at": 0,
        "model": MODEL,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + sampled,
        },
    }


def _items(reply: ChatReply) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if reply.message.text or not reply.calls:
        part = {"type": "output_text", "text": reply.message.text, "annotations": []}
        items.append(
            {
                "id": f"msg_{reply.id}",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [part],
            }
        )
    items += [
        {
            "id": f"fc_{call_id}",
            "type": "function_call",
            "call_id": call_id,
            "name": call.name,
            "arguments": json.dumps(dict(call.arguments)),
            "status": "completed",
        }
        for call_id, call in reply.calls
    ]
    return items


def _empty(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item as a stream announces it."""
    body = {"content": []} if item["type"] == "message" else {"arguments": ""}
    return {**item, **body, "status": "in_progress"}
