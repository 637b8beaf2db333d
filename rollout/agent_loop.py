"""One episode: the policy speaks and tools answer, until the world, the policy or a budget ends it.

Takes a task and an engine; returns a `Trajectory` with its outcome. In a picture:

    reset -> opening -> | render -> engine.extend -> parse -> call tools | -> grade -> Trajectory
                        +----------------- turn after turn -------------+

What fails is told apart. The world (an environment, a sandbox, a grader) failing is a typed
`Invalid` outcome, never a reward of 0. The policy failing (a bad call, no call) is its own business
and is graded. The system failing (`EngineError`) is raised.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from envs.config import EnvironmentConfig
from envs.environment import (
    RESET_TIMEOUT_SECONDS,
    EnvironmentFailure,
    EnvironmentSpec,
    answer_text,
    collect_artifacts,
    end_episode,
    is_done,
    start_episode,
    takes_text,
)
from envs.episode import Episode, StopReason
from envs.messages import JsonValue, Message, Role, ToolCall
from envs.sandbox import SandboxError
from envs.tools import call_tool
from rewards.grading import grade_episode
from rewards.reward import Blame, Grader, Invalid, Outcome
from rollout.config import RolloutConfig
from rollout.conversation import Attempt, Conversation, Player, TokenBudget
from rollout.engine import Engine
from rollout.input_error import InputError, about_input
from rollout.renderer import count_opening_tokens
from rollout.sub_agent import ASK, SubAgents, offered_tools
from rollout.tokenizer import Tokenizer
from rollout.tool_parser import FailureKind, ParseFailure
from rollout.trajectory import Trajectory

GRADER_TIMEOUT_SECONDS = 120.0
"""A grader that takes longer gives an Invalid outcome."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What an episode is played in: the environment, its grader and its limits."""

    spec: EnvironmentSpec
    grader: Grader
    config: EnvironmentConfig


async def run_episode(
    attempt: Attempt, world: World, engine: Engine, tokenizer: Tokenizer, config: RolloutConfig
) -> Trajectory:
    """Play one episode and grade it.

    Args:
        attempt: The task and the seeds.
        world: The task's environment and grader.
        engine: Samples; one session is opened and, whatever happens, closed.
        tokenizer: The policy's.
        config: Budgets: `max_turns`, `max_tokens`, `max_sampled_tokens`.

    Returns:
        The trajectory; its outcome is Invalid where the environment or the grader failed.

    Raises:
        InputError: the opening leaves no room in `max_tokens`, or a tool cannot be described.
        EngineError: the engine failed.
    """
    budget = TokenBudget(config.max_sampled_tokens)
    player = Player(
        attempt=attempt, engine=engine, tokenizer=tokenizer, config=config, budget=budget
    )
    play = _Play(player, world.config)
    artifacts: Mapping[str, JsonValue] = {}
    environment, failure = None, None
    try:
        environment, opening = await start_episode(world.spec, attempt.task, RESET_TIMEOUT_SECONDS)
        stop = await play.run(environment, opening)
        artifacts = await collect_artifacts(environment)
    except EnvironmentFailure as error:
        stop, failure = StopReason.ENVIRONMENT_ERROR, blame(error)
    finally:
        try:
            await play.conversation.close()
        finally:  # also where the engine is dead: the environment may hold processes
            await _end(environment)
    if stop is StopReason.ABORTED:
        failure = Invalid(reason="aborted", blame=Blame.INFRASTRUCTURE, detail="sampling aborted")
    episode = Episode(
        task=attempt.task,
        messages=tuple(play.conversation.messages),
        stop=stop,
        artifacts=artifacts,
        error=failure.detail if failure else None,
    )
    conversations = play.conversations
    reports = [conversation.report for conversation in conversations]
    return Trajectory(
        id=attempt.id,
        episode=episode,
        segments=tuple(conversation.segment for conversation in conversations),
        turns=tuple(turn for conversation in conversations for turn in conversation.turns),
        outcome=failure or await grade(world.grader, episode),
        computed_tokens=sum(report.computed_tokens for report in reports),
        publish_recomputed_tokens=sum(report.publish_recomputed_tokens for report in reports),
    )


class _Play:
    """The course of one episode."""

    def __init__(self, player: Player, limits: EnvironmentConfig) -> None:
        self.conversation = Conversation(player)
        self._player = player
        self._limits = limits
        self._sub_agents: SubAgents | None = None

    @property
    def conversations(self) -> list[Conversation]:
        """The episode's own, and those of sub-agents."""
        nested = self._sub_agents.conversations if self._sub_agents else []
        return [self.conversation, *nested]

    async def run(self, environment: object, opening: str) -> StopReason:
        """Take turns until something ends the episode."""
        await self._begin(environment, opening)
        conversation = self.conversation
        for turn in range(self._player.config.max_turns):
            started = time.perf_counter()
            room = conversation.room()
            if room < 1:
                return StopReason.MAX_TOKENS
            finish, action = await conversation.sample(turn, room)
            replies, stop = await self._answer(action, environment, finish)
            conversation.append_replies(replies, time.perf_counter() - started)
            if self._sub_agents is not None and self._sub_agents.is_aborted:
                return StopReason.ABORTED
            if stop is not None:
                return stop
        return StopReason.MAX_TURNS

    async def _begin(self, environment: object, opening: str) -> None:
        """Open the conversation.

        Raises:
            InputError: no token could be sampled after the opening, or a tool has a parameter that
                no policy can write.
        """
        config = self._player.config
        with about_input():
            tools = offered_tools(environment, config)
        if config.sub_agent is not None:
            self._sub_agents = SubAgents(self._player, config.sub_agent, environment, self._limits)
        needed = count_opening_tokens(self._player.tokenizer, tools, opening)
        if needed >= config.max_tokens:
            raise InputError(
                f"task {self._player.attempt.task.id}: its opening takes {needed} tokens and "
                f"leaves no room in rollout.max_tokens = {config.max_tokens}: raise it above "
                f"{needed}"
            )
        await self.conversation.begin(opening, tools, takes_text=takes_text(environment))

    async def _answer(
        self, action: Message | ParseFailure, environment: object, finish: str
    ) -> tuple[list[Message], StopReason | None]:
        """Let the environment answer a policy message.

        Returns:
            The replies, and why the episode ends with this turn, or None.
        """
        if isinstance(action, ParseFailure):
            if action.kind.is_answerable:
                name = action.tool_name
                return [Message(role=Role.TOOL, text=action.reason, tool_name=name)], None
            return [], _stop_for(action.kind, finish)
        if not action.tool_calls and not takes_text(environment):
            return [], StopReason.FINISHED
        replies: list[Message] = []
        if not action.tool_calls:
            text = await answer_text(environment, action.text, self._limits.max_tool_characters)
            replies.append(Message(role=Role.TOOL, text=text, tool_name="step"))
            return replies, StopReason.FINISHED if await is_done(environment) else None
        for call in action.tool_calls:
            replies.append(await self._call(environment, call))
            if await is_done(environment):
                return replies, StopReason.FINISHED
        return replies, None

    async def _call(self, environment: object, call: ToolCall) -> Message:
        """Run one call; a sync tool runs in a thread, so that no other conversation waits."""
        if self._sub_agents is not None and call.name == ASK.name:
            text = await self._sub_agents.ask(str(call.arguments["question"]))
        else:
            limits = self._limits
            text = await call_tool(
                environment, call, limits.tool_timeout_seconds, limits.max_tool_characters
            )
        return Message(role=Role.TOOL, text=text, tool_name=call.name)


def _stop_for(kind: FailureKind, finish: str) -> StopReason:
    """Tell why an unanswerable message ends the episode."""
    if finish == "abort":
        return StopReason.ABORTED
    return StopReason.MAX_TOKENS if kind is FailureKind.CUT_OFF else StopReason.UNPARSABLE


async def grade(grader: Grader, episode: Episode) -> Outcome:
    """Grade an episode; whatever the grader does, an outcome comes out and nobody else waits."""
    return await grade_episode(grader, episode, GRADER_TIMEOUT_SECONDS)


def blame(failure: EnvironmentFailure) -> Invalid:
    """Type what broke: the environment's code, or the sandbox under it."""
    if isinstance(failure.__cause__, SandboxError):
        return Invalid(reason="sandbox_failed", blame=Blame.INFRASTRUCTURE, detail=str(failure))
    return Invalid(reason="environment_failed", blame=Blame.ENVIRONMENT, detail=str(failure))


async def _end(environment: object) -> None:
    """Close an environment; what its `close` raises is logged, for the episode is over."""
    if environment is None:
        return
    try:
        await end_episode(environment)
    except EnvironmentFailure as error:
        _log.warning("%s", error)
