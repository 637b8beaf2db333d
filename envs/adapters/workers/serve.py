"""The inside of an isolated adapter: runs in the virtual environment of another project.

    python serve.py FAMILY REFERENCE NUM_TASKS      # FAMILY_world.py stands beside this file

Speaks JSON lines over stdin and stdout, one request and one reply each, by `id`; replies come as
they are ready. Nothing of Limosa and nothing but the standard library is needed here.

    {"id": 1, "method": "hello"}                                     {"id": 1, "result": {...}}
    {"id": 2, "method": "reset", "episode": "e", "task": "3"}        {"id": 2, "error": "..."}

| method | parameters | result |
| --- | --- | --- |
| `hello` | | `protocol`, and `tools`: `name`, `description`, `schema` |
| `list_tasks` | | `[{"id": ...}]` |
| `reset` | `episode`, `task`, `seed` | `opening` |
| `call_tool` | `episode`, `name`, `arguments` | `text`, `is_error`, `is_done` |
| `step` | `episode`, `text` | as `call_tool` |
| `score` | `episode` | `value`, or null where nothing was scored |
| `close` | `episode` | null |

A family's module has `load(reference, num_tasks)`; what it returns has `tools()`, `list_tasks()`
and `start(task, seed)`, and an episode has `opening`, `is_done`, `call(name, arguments)` ->
`(text, is_error)`, `step(text)`, `score()` and `close()`. All but the attributes are async.
"""

import asyncio
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

PROTOCOL = 1


class Service:
    """Answers requests for the episodes of one family."""

    def __init__(self, family: Any) -> None:  # noqa: ANN401
        """Serve a family that `load` made."""
        self._family = family
        self._episodes: dict[str, Any] = {}

    async def answer(self, request: dict[str, Any]) -> Any:  # noqa: ANN401
        """Carry out one request."""
        method, episode = request["method"], request.get("episode", "")
        if method == "hello":
            return {"protocol": PROTOCOL, "tools": await self._family.tools()}
        if method == "list_tasks":
            return await self._family.list_tasks()
        if method == "reset":
            live = await self._family.start(request["task"], request["seed"])
            self._episodes[episode] = live
            return {"opening": live.opening}
        if method == "close":
            live = self._episodes.pop(episode, None)
            return None if live is None else await live.close()
        return await self._play(self._episodes[episode], request)

    async def _play(self, live: Any, request: dict[str, Any]) -> Any:  # noqa: ANN401
        method = request["method"]
        if method == "score":
            return {"value": await live.score()}
        if method == "call_tool":
            text, is_error = await live.call(request["name"], request["arguments"])
        elif method == "step":
            text, is_error = await live.step(request["text"])
        else:
            raise ValueError(f"no method {method!r}")
        return {"text": text, "is_error": is_error, "is_done": live.is_done}


async def serve(service: Service, requests: TextIO, replies: TextIO) -> None:
    """Answer every line until there are no more."""

    async def handle(request: dict[str, Any]) -> None:
        try:
            reply = {"id": request["id"], "result": await service.answer(request)}
        except Exception as error:  # foreign code: whatever it raises is said, and nothing ends
            line = " ".join(f"{type(error).__name__}: {error}".split())
            reply = {"id": request["id"], "error": line[:500]}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()

    running = set()
    while line := await asyncio.to_thread(requests.readline):
        task = asyncio.create_task(handle(json.loads(line)))
        running.add(task)
        task.add_done_callback(running.discard)


def main() -> None:
    """Load the family and serve it."""
    family_name, reference, num_tasks = sys.argv[1:4]
    # What foreign code prints must not look like a reply: it goes to standard error.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.path.append(str(Path.cwd()))
    family = importlib.import_module(f"{family_name}_world").load(reference, int(num_tasks))
    asyncio.run(serve(Service(family), sys.stdin, replies))


if __name__ == "__main__":
    main()
