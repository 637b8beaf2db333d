"""Play an episode in text: a scripted policy against a real environment, without any token.

Takes a task and a policy, returns an `Episode`. Demonstrations, naive baselines and the checker
use it; a model's episodes come from the agent loop of `rollout`, which drives environments with
the same functions.
"""

from collections.abc import Mapping

from envs.environment import (
    EnvironmentFailure,
    EnvironmentSpec,
    Expert,
    collect_artifacts,
    end_episode,
    is_done,
    start_episode,
)
from envs.episode import Episode, StopReason
from envs.messages import JsonValue, Message, Role
from envs.task import Task
from envs.tools import call_tool


async def play(
    spec: EnvironmentSpec,
    task: Task,
    policy: Expert,
    *,
    max_turns: int = 6,
    tool_timeout_seconds: float = 10.0,
    max_tool_characters: int = 2000,
) -> Episode:
    """Let a policy play one episode.

    Args:
        spec: The environment.
        task: The task.
        policy: The messages so far to the next policy message.
        max_turns: Policy messages, at most.
        tool_timeout_seconds: As in `call_tool`.
        max_tool_characters: As in `call_tool`.

    Returns:
        The episode. Where the environment broke, it stops with ENVIRONMENT_ERROR and says why.
    """
    messages: list[Message] = []
    artifacts: Mapping[str, JsonValue] = {}
    environment, error = None, None
    try:
        environment, opening = await start_episode(spec, task)
        messages.append(Message(role=Role.USER, text=opening))
        stop = StopReason.MAX_TURNS
        for _ in range(max_turns):
            action = policy(messages)
            messages.append(action)
            if not action.tool_calls:
                stop = StopReason.UNPARSABLE
                break
            for call in action.tool_calls:
                reply = await call_tool(
                    environment, call, tool_timeout_seconds, max_tool_characters
                )
                messages.append(Message(role=Role.TOOL, text=reply, tool_name=call.name))
                if await is_done(environment):
                    break
            if await is_done(environment):
                stop = StopReason.FINISHED
                break
        artifacts = await collect_artifacts(environment)
    except EnvironmentFailure as failure:
        stop, error = StopReason.ENVIRONMENT_ERROR, str(failure)
    finally:
        if environment is not None:
            await end_episode(environment)
    return Episode(task=task, messages=tuple(messages), stop=stop, artifacts=artifacts, error=error)
