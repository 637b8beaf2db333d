"""Play an episode in text: a scripted policy against a real environment, without any token.

Takes a task and a policy, returns an `Episode`. Demonstrations, naive baselines and the checker
use it; a model's episodes come from the agent loop of `rollout`, which drives environments with
the same functions.
"""

from envs.environment import (
    EnvironmentFailure,
    EnvironmentSpec,
    Expert,
    answer_text,
    collect_artifacts,
    end_episode,
    is_done,
    start_episode,
    takes_text,
)
from envs.episode import Episode, StopReason
from envs.messages import Message, Role
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
    try:
        environment, opening = await start_episode(spec, task)
        messages.append(Message(role=Role.USER, text=opening))
        try:
            stop = StopReason.MAX_TURNS
            for _ in range(max_turns):
                action = policy(messages)
                messages.append(action)
                if not (action.tool_calls or takes_text(environment)):
                    stop = StopReason.UNPARSABLE
                    break
                messages += await answer_action(
                    environment, action, tool_timeout_seconds, max_tool_characters
                )
                if await is_done(environment):
                    stop = StopReason.FINISHED
                    break
            artifacts = await collect_artifacts(environment)
        finally:
            await end_episode(environment)
    except EnvironmentFailure as failure:
        return Episode(
            task=task,
            messages=tuple(messages),
            stop=StopReason.ENVIRONMENT_ERROR,
            error=str(failure),
        )
    return Episode(task=task, messages=tuple(messages), stop=stop, artifacts=artifacts)


async def answer_action(
    environment: object,
    action: Message,
    timeout_seconds: float = 10.0,
    max_characters: int = 2000,
) -> list[Message]:
    """Carry out the calls of one policy message, up to the one that ends the episode.

    Plain text goes to the environment's `step`, and its reply is that of a tool of this name.
    """
    replies = []
    if not action.tool_calls:
        text = await answer_text(environment, action.text, max_characters)
        return [Message(role=Role.TOOL, text=text, tool_name="step")]
    for call in action.tool_calls:
        text = await call_tool(environment, call, timeout_seconds, max_characters)
        replies.append(Message(role=Role.TOOL, text=text, tool_name=call.name))
        if await is_done(environment):
            break
    return replies
