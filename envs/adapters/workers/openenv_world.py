"""Environments of OpenEnv, inside its own virtual environment; see `serve.py`.

An environment with MCP tools offers those; any other offers `act`, whose arguments are the fields
of its action. The rewards of the steps are summed.
"""

import importlib
import json
from typing import Any, get_args

_INTERFACES = importlib.import_module("openenv.core.env_server.interfaces")
_MCP = importlib.import_module("openenv.core.env_server.mcp_environment")
_TYPES = importlib.import_module("openenv.core.env_server.mcp_types")

_OWN_FIELDS = ("metadata", "done", "reward")
"""What every action and observation has, beside what it says."""


def load(reference: str, num_tasks: int) -> "Family":
    """Load an environment class by `module:Class`."""
    module, _, name = reference.partition(":")
    kind = getattr(importlib.import_module(module), name)
    if not (isinstance(kind, type) and issubclass(kind, _INTERFACES.Environment)):
        raise TypeError(f"{reference} is no OpenEnv Environment")
    return Family(kind, num_tasks)


class Family:
    """Episodes of one class; a task is a seed, or an index of a split that the class lists."""

    def __init__(self, kind: type, num_tasks: int) -> None:
        """Serve this class."""
        self._kind: Any = kind
        self._num_tasks = num_tasks

    async def tools(self) -> list[dict[str, Any]]:
        """Its MCP tools, or `act`."""
        world = self._kind()
        try:
            if isinstance(world, _MCP.MCPEnvironment):
                listed = await world.step_async(_TYPES.ListToolsAction())
                return [
                    {
                        "name": tool.name,
                        "description": tool.description,
                        "schema": tool.input_schema,
                    }
                    for tool in listed.tools
                ]
            schema = action_type(self._kind).model_json_schema()
            for name in _OWN_FIELDS:
                schema.get("properties", {}).pop(name, None)
            description = schema.get("description", "Act in the environment.")
            return [{"name": "act", "description": description, "schema": schema}]
        finally:
            world.close()

    async def list_tasks(self) -> list[dict[str, Any]]:
        """The tasks of its splits where it lists them, else seeds."""
        if not hasattr(self._kind, "list_splits"):
            return [{"id": str(seed)} for seed in range(self._num_tasks)]
        world = self._kind()
        tasks = []
        for split in world.list_splits():
            name = split if isinstance(split, str) else split["name"]
            count = min(self._num_tasks, world.num_tasks(name))
            tasks += [{"id": f"{name}:{index}"} for index in range(count)]
        return tasks

    async def start(self, task: str, seed: int) -> "Live":
        """Reset a new instance."""
        world = self._kind()
        split, colon, index = task.rpartition(":")
        chosen = {"split": split, "index": int(index)} if colon else {}
        observation = await world.reset_async(seed=int(task) if not colon else seed, **chosen)
        return Live(world, observation, None if self._is_mcp() else action_type(self._kind))

    def _is_mcp(self) -> bool:
        return issubclass(self._kind, _MCP.MCPEnvironment)


class Live:
    """One episode."""

    def __init__(self, world: Any, observation: Any, action: Any) -> None:  # noqa: ANN401
        """Begin with what `reset` showed."""
        self._world = world
        self._action = action
        self._total: float | None = None
        self.is_done = False
        self.opening = self._see(observation)

    async def call(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        """Call an MCP tool, or take an action."""
        if self._action is None:
            action = _TYPES.CallToolAction(tool_name=name, arguments=arguments)
        else:
            try:
                action = self._action(**arguments)
            except ValueError as error:  # pydantic's own say what is wrong with which field
                return " ".join(str(error).split()), True
        observation = await self._world.step_async(action)
        text = self._see(observation)
        failure = getattr(observation, "error", None)
        if failure is not None:
            return failure.message, True
        result: Any = getattr(observation, "result", None)
        if self._action is None and hasattr(result, "content"):
            text = "\n".join(getattr(block, "text", "(no text)") for block in result.content)
            return text, bool(result.is_error)
        return text, False

    async def step(self, text: str) -> tuple[str, bool]:
        """Plain text is no action."""
        del text
        return "call a tool", True

    async def score(self) -> float | None:
        """The sum of the rewards; None where no step gave one."""
        return self._total

    async def close(self) -> None:
        """Let the environment go."""
        self._world.close()

    def _see(self, observation: Any) -> str:  # noqa: ANN401
        """Take note of what a step paid, and spell out what it showed."""
        if observation.reward is not None:
            self._total = (self._total or 0.0) + float(observation.reward)
        self.is_done = bool(observation.done)
        shown = observation.model_dump(mode="json")
        for name in _OWN_FIELDS:
            shown.pop(name, None)
        values = list(shown.values())
        is_text = len(values) == 1 and isinstance(values[0], str)
        return values[0] if is_text else json.dumps(shown)


def action_type(kind: Any) -> Any:  # noqa: ANN401
    """The action of an environment class, from the types that it was declared with."""
    for base in getattr(kind, "__orig_bases__", ()):
        for argument in get_args(base):
            if isinstance(argument, type) and issubclass(argument, _INTERFACES.Action):
                return argument
    raise TypeError(f"{kind.__name__} does not say its action: class X(Environment[Action, ...])")
