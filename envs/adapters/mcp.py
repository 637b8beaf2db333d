"""MCP servers as environments: the server's tools are the policy's tools.

    SPEC = mcp_environment(
        name="notes", server=["python", "notes_server.py"], tasks=make_tasks
    )

`server` is a command that speaks MCP over stdio, or the URL of a streamable HTTP endpoint. Each
episode has a session of its own; with stdio that is a process of its own. Beside the server's tools
there is `submit(answer)`, which ends the episode: the grader finds the answer in the artifacts.
A task's data is `{"prompt": ...}`.
"""

import asyncio
import io
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TextIO

from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client import Transport
from mcp.types import INVALID_PARAMS, CallToolResult, TextContent, Tool

from envs.adapters.tool_methods import ForeignTool, make_methods
from envs.environment import EnvironmentSpec, Expert, ToolError, valid_text
from envs.messages import JsonValue
from envs.task import Task

Server = str | Sequence[str]
"""The URL of a server, or the command that starts one."""


def mcp_environment(
    *,
    name: str,
    server: Server,
    tasks: Callable[..., Sequence[Task]],
    expert: Callable[..., Expert] | None = None,
) -> EnvironmentSpec:
    """Make an environment of an MCP server, which is asked once for its tools.

    Args:
        name: Of the environment.
        server: A command (stdio), or a URL (streamable HTTP).
        tasks: As in `EnvironmentSpec`; their data is `{"prompt": ...}`.
        expert: As in `EnvironmentSpec`.

    Raises:
        ValueError: one line: the server does not answer, or has a tool that a policy cannot call.
    """
    # A loop may be running here already: this is called while a module is imported.
    with ThreadPoolExecutor(max_workers=1) as threads:
        tools = threads.submit(asyncio.run, _list_tools(server)).result()
    descriptions = [
        ForeignTool(
            name=tool.name,
            description=tool.description or tool.title or "",
            schema=tool.input_schema,
        )
        for tool in tools
    ]
    try:
        methods = make_methods(descriptions, McpWorld)
    except ValueError as error:
        raise ValueError(f"MCP server of {name}: {error}") from None
    kind = type(f"Mcp_{name}", (McpWorld,), {"server": server, **methods})
    return EnvironmentSpec(name=name, environment=kind, tasks=tasks, expert=expert)


class McpWorld:
    """One episode with a server. A subclass per server has its tools as methods."""

    server: Server

    def __init__(self) -> None:
        """No session is open before `reset`."""
        self._session: McpSession | None = None
        self._answer: str | None = None

    async def reset(self, prompt: str) -> str:
        """Open a session."""
        self._session = await McpSession.open(self.server)
        return prompt

    def submit(self, answer: str) -> str:
        """Give the final answer.

        Args:
            answer: The answer.
        """
        self._answer = answer
        return "submitted"

    def done(self) -> bool:
        """Whether an answer was submitted."""
        return self._answer is not None

    def artifacts(self) -> dict[str, JsonValue]:
        """The answer, where there is one."""
        return {} if self._answer is None else {"answer": self._answer}

    async def close(self) -> None:
        """End the session, and the server's process with it."""
        if self._session is not None:
            await self._session.close()

    async def _call(self, tool: str, arguments: Mapping[str, JsonValue]) -> str:
        assert self._session is not None
        return await self._session.call(tool, arguments)


class McpSession:
    """A connection that a task of its own opens and closes.

    The SDK wants both to happen in one task; an episode may begin and end in different ones.
    """

    def __init__(self, client: Client, stop: asyncio.Event, owner: asyncio.Task[None]) -> None:
        """Open it with `open`."""
        self._client = client
        self._stop = stop
        self._owner = owner

    @classmethod
    async def open(cls, server: Server) -> "McpSession":
        """Connect.

        Raises:
            ConnectionError: one line: no server answers, with the last line that it wrote.
        """
        ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        stop = asyncio.Event()
        owner = asyncio.create_task(_hold(server, ready, stop))
        try:
            await asyncio.wait((owner, ready), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            owner.cancel()
            raise
        if not ready.done():
            await owner
        return cls(ready.result(), stop, owner)

    async def list_tools(self) -> list[Tool]:
        """All tools of the server, page after page."""
        tools, cursor = [], None
        while True:
            page = await self._client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if not cursor:
                return tools

    async def call(self, tool: str, arguments: Mapping[str, JsonValue]) -> str:
        """Call a tool.

        Raises:
            ToolError: the server says that the call failed, or that its arguments are wrong.
            MCPError: the server broke.
        """
        try:
            result = await self._client.call_tool(tool, valid_json(arguments))
        except MCPError as error:
            if error.error.code == INVALID_PARAMS:
                raise ToolError(error.error.message) from error
            raise
        text = spell_result(result)
        if result.is_error:
            raise ToolError(text)
        return text

    async def close(self) -> None:
        """Disconnect. Idempotent."""
        self._stop.set()
        await asyncio.wait([self._owner])


def valid_json(arguments: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Replace by `?` in arguments what no UTF-8 text can hold: it would break the connection."""
    return json.loads(valid_text(json.dumps(dict(arguments), ensure_ascii=False)))


def spell_result(result: CallToolResult) -> str:
    """Spell out what a tool returned; what is no text is named, not shown."""
    parts = [
        block.text if isinstance(block, TextContent) else f"({block.type} content)"
        for block in result.content
    ]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content)
    return "\n".join(parts)


async def _hold(server: Server, ready: asyncio.Future[Client], stop: asyncio.Event) -> None:
    """Connect, say so, and disconnect when told to."""
    with io.TextIOWrapper(tempfile.TemporaryFile(), encoding="utf-8", errors="replace") as log:
        try:
            async with Client(_transport(server, log)) as client:
                ready.set_result(client)
                await stop.wait()
        except Exception as error:
            if ready.done():
                raise
            log.seek(0)
            said = log.read().strip().splitlines()[-1:]
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ConnectionError(f"no MCP server: {' '.join([*said, reason])[:300]}") from error


def _transport(server: Server, log: TextIO) -> str | Transport:
    if isinstance(server, str):
        return server
    command, *arguments = server
    return stdio_client(StdioServerParameters(command=command, args=arguments), errlog=log)


async def _list_tools(server: Server) -> list[Tool]:
    try:
        session = await McpSession.open(server)
    except ConnectionError as error:
        raise ValueError(str(error)) from error
    try:
        return await session.list_tools()
    finally:
        await session.close()
