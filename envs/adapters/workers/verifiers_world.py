"""Tasksets of verifiers 0.4, inside its own virtual environment; see `serve.py`.

The tools of a task's toolsets are called in this process, without its tool servers, and scored
offline: rewards that need a runtime (a container) are not given, and say so.
"""

import importlib
import itertools
from typing import Any

_SERVER = importlib.import_module("verifiers.v1.mcp.server")
_GRAPH = importlib.import_module("verifiers.v1.graph")
_LOADERS = importlib.import_module("verifiers.v1.utils.loaders")
_TRACE = importlib.import_module("verifiers.v1.trace")
_TYPES = importlib.import_module("verifiers.v1.types")
_VF = importlib.import_module("verifiers.v1")
_MCP = importlib.import_module("mcp.server.mcpserver")

ANSWER = {
    "name": "answer",
    "description": "Give the final answer.",
    "schema": {
        "type": "object",
        "properties": {"text": {"type": "string", "description": "The answer."}},
        "required": ["text"],
    },
}


def load(reference: str, num_tasks: int) -> "Family":
    """Load a taskset by its id: a module that exports one in `__all__`."""
    config = _LOADERS.taskset_config_type(reference)(id=reference)
    taskset = _LOADERS.load_taskset(config)
    tasks = list(itertools.islice(taskset, num_tasks))
    if not tasks:
        raise ValueError(f"taskset {reference!r} has no tasks")
    if type(tasks[0]).NEEDS_CONTAINER:
        raise ValueError(f"taskset {reference!r} needs a container for each task")
    return Family(tasks)


class Family:
    """The tasks of one taskset."""

    def __init__(self, tasks: list[Any]) -> None:
        """Serve these."""
        self._tasks = {str(task.data.idx): task for task in tasks}

    async def tools(self) -> list[dict[str, Any]]:
        """The tools of the first task, which all share, and `answer`."""
        episode = await self.start(next(iter(self._tasks)), 0)
        described = await episode.describe_tools()
        await episode.close()
        return [*described, ANSWER]

    async def list_tasks(self) -> list[dict[str, Any]]:
        """Tasks by their position in the taskset."""
        return [{"id": key} for key in self._tasks]

    async def start(self, task: str, seed: int) -> "Live":
        """Begin an episode."""
        del seed
        live = Live(self._tasks[task])
        await live.set_up()
        return live


class Live:
    """One episode: the trace of what was said, as verifiers scores it."""

    def __init__(self, task: Any) -> None:  # noqa: ANN401
        """Begin with the prompt."""
        self._task = task
        data = task.data
        self.opening = "\n\n".join(text for text in (data.system_prompt, data.prompt_text) if text)
        self.is_done = False
        record = _TRACE.TraceTask(type=type(task).__name__, data=data, key=task.key, hash=task.hash)
        agent = _TRACE.AgentInfo(config=_VF.AgentConfig())
        self._trace = _TRACE.Trace(task=record, agent=agent)
        self._say(_TYPES.UserMessage(content=self.opening), is_sampled=False)
        self._server = _MCP.MCPServer("tools")
        self._num_calls = 0

    async def set_up(self) -> None:
        """Set up the toolsets, and offer their tools under the names that verifiers gives them."""
        for toolset in type(self._task).toolsets(self._task.config):
            await toolset.setup()
            await toolset.setup_task(self._task.data)
            prefix = f"{toolset.server_name}_" if toolset.server_name else ""
            inside = _MCP.MCPServer(toolset.server_name or "tools")
            toolset.register(inside)
            for tool in inside._tool_manager.list_tools():  # names, with their code
                self._server.add_tool(
                    tool.fn, name=f"{prefix}{tool.name}", description=tool.description
                )

    async def describe_tools(self) -> list[dict[str, Any]]:
        """The tools of the task's toolsets."""
        return [
            {"name": tool.name, "description": tool.description, "schema": tool.input_schema}
            for tool in await self._server.list_tools()
        ]

    async def call(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        """Call a tool, or take the final answer."""
        if name == ANSWER["name"]:
            self._say(_TYPES.AssistantMessage(content=arguments["text"]), is_sampled=True)
            self.is_done = True
            return "answered", False
        self._num_calls += 1
        call_id = f"call_{self._num_calls}"
        try:
            text, is_error = _spell(await self._server.call_tool(name, arguments))
        except Exception as error:  # a tool that raises says so to the policy, as in verifiers
            text, is_error = str(error), True
        reply = _TYPES.ToolMessage(tool_call_id=call_id, content=text, name=name)
        self._say(reply, is_sampled=False)
        return text, is_error

    async def step(self, text: str) -> tuple[str, bool]:
        """Plain text is the final answer."""
        return await self.call(ANSWER["name"], {"text": text})

    async def score(self) -> float | None:
        """Score the trace; None where every reward needs a runtime."""
        self._trace.is_completed = self._trace.ok = True
        await self._task.score(self._trace, runtime=None)
        return self._trace.reward if self._trace.rewards else None

    async def close(self) -> None:
        """Nothing is held."""

    def _say(self, message: Any, *, is_sampled: bool) -> None:  # noqa: ANN401
        parent = len(self._trace.nodes) - 1 if self._trace.nodes else None
        node = _GRAPH.MessageNode(parent=parent, message=message, sampled=is_sampled)
        self._trace.nodes.append(node)


def _spell(result: Any) -> tuple[str, bool]:  # noqa: ANN401
    """Spell out what an MCP tool returned."""
    content = getattr(result, "content", result)
    blocks = content if isinstance(content, list) else [content]
    text = "\n".join(getattr(block, "text", "(no text)") for block in blocks)
    return text, bool(getattr(result, "is_error", False))
