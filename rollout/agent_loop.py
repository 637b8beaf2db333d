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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
from envs.task import Task
from envs.tools import call_tool, tool_specs
from rewards.grading import grade_episode
from rewards.reward import Blame, Grader, Invalid, Outcome
from rollout.config import RolloutConfig
from rollout.engine import Engine, SamplingConfig, Session, SessionReport
from rollout.input_error import InputError, about_input
from rollout.renderer import Piece, Renderer
from rollout.seeds import derive_seed
from rollout.tokenizer import Tokenizer
from rollout.tool_parser import FailureKind, ParseFailure, ToolParser
from rollout.trajectory import Trajectory, Turn
from rollout.transcript import Transcript

GRADER_TIMEOUT_SECONDS = 120.0
"""A grader that takes longer gives an Invalid outcome."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Which attempt at which task: all that tells one episode of a run from another."""

    task: Task
    sibling: int = 0
    """Index in the group."""
    round: int = 0
    """How often the run planned the task before."""
    run_seed: int = 0
    temperature: float = 1.0
    retry: int = 0
    """How often the episode broke before and was begun again."""

    @property
    def id(self) -> str:
        """`<task id>#<sibling>@<round>`, and `~<retry>` after the first try."""
        first = f"{self.task.id}#{self.sibling}@{self.round}"
        return f"{first}~{self.retry}" if self.retry else first

    def turn_seed(self, turn: int) -> int:
        """Seed of a turn's sampling: the same attempt samples the same at the same weights."""
        keys = (self.run_seed, self.task.id, self.sibling, self.round, turn)
        return derive_seed("turn", *keys, self.retry) if self.retry else derive_seed("turn", *keys)


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
    conversation = _Conversation(attempt, engine, tokenizer, config)
    artifacts: Mapping[str, JsonValue] = {}
    environment, failure = None, None
    try:
        environment, opening = await start_episode(world.spec, attempt.task, RESET_TIMEOUT_SECONDS)
        stop = await _play(conversation, environment, opening, world.config)
        artifacts = await collect_artifacts(environment)
    except EnvironmentFailure as error:
        stop, failure = StopReason.ENVIRONMENT_ERROR, blame(error)
    finally:
        try:
            report = await conversation.close()
        finally:  # also where the engine is dead: the environment may hold processes
            await _end(environment)
    if stop is StopReason.ABORTED:
        failure = Invalid(reason="aborted", blame=Blame.INFRASTRUCTURE, detail="sampling aborted")
    episode = Episode(
        task=attempt.task,
        messages=tuple(conversation.messages),
        stop=stop,
        artifacts=artifacts,
        error=failure.detail if failure else None,
    )
    return Trajectory(
        id=attempt.id,
        episode=episode,
        segments=(conversation.transcript.to_segment(report.expert_ids),),
        turns=tuple(conversation.turns),
        outcome=failure or await grade(world.grader, episode),
        computed_tokens=report.computed_tokens,
        publish_recomputed_tokens=report.publish_recomputed_tokens,
    )


async def _play(
    conversation: "_Conversation", environment: object, opening: str, limits: EnvironmentConfig
) -> StopReason:
    """Take turns until something ends the episode."""
    await conversation.begin(environment, opening)
    for turn in range(conversation.max_turns):
        started = time.perf_counter()
        room = conversation.room()
        if room < 1:
            return StopReason.MAX_TOKENS
        finish, action = await conversation.sample(turn, room)
        replies, stop = await _answer(action, environment, limits, finish)
        conversation.append_replies(replies, time.perf_counter() - started)
        if stop is not None:
            return stop
    return StopReason.MAX_TURNS


async def _answer(
    action: Message | ParseFailure, environment: object, limits: EnvironmentConfig, finish: str
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
        text = await answer_text(environment, action.text)
        replies.append(Message(role=Role.TOOL, text=text, tool_name="step"))
        return replies, StopReason.FINISHED if await is_done(environment) else None
    for call in action.tool_calls:
        replies.append(await _call(environment, call, limits))
        if await is_done(environment):
            return replies, StopReason.FINISHED
    return replies, None


async def _call(environment: object, call: ToolCall, limits: EnvironmentConfig) -> Message:
    """Run one call: sync tools run in a thread, so that no other conversation waits for one."""
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


class _Conversation:
    """The policy's side of an episode: its session, its transcript, and what is not yet sent."""

    def __init__(
        self, attempt: Attempt, engine: Engine, tokenizer: Tokenizer, config: RolloutConfig
    ) -> None:
        self.transcript = Transcript()
        self.messages: list[Message] = []
        self.turns: list[Turn] = []
        self.max_turns = config.max_turns
        self._attempt = attempt
        self._engine = engine
        self._tokenizer = tokenizer
        self._config = config
        self._session: Session | None = None
        self._pending: list[Piece] = []
        """Rendered, but not yet seen by the engine: an episode that ends here never sends it."""
        self._num_sampled = 0

    async def begin(self, environment: object, opening: str) -> None:
        """Render the opening and start the session.

        Raises:
            InputError: no token could be sampled after the opening, or a tool has a parameter that
                no policy can write.
        """
        with about_input():
            tools = tool_specs(environment)
        self._renderer = Renderer(self._tokenizer, tools)
        self._parser = ToolParser(self._tokenizer, tools, takes_text=takes_text(environment))
        self.messages.append(Message(role=Role.USER, text=opening))
        self._pending = self._renderer.render_opening(opening)
        needed, limit = count_tokens(self._pending), self._config.max_tokens
        if needed >= limit:
            raise InputError(
                f"task {self._attempt.task.id}: its opening takes {needed} tokens and leaves no "
                f"room in rollout.max_tokens = {limit}: raise it above {needed}"
            )
        self._session = await self._engine.open(self._attempt.id)

    def room(self) -> int:
        """Tokens that the policy may still write."""
        used = len(self.transcript) + count_tokens(self._pending)
        return min(
            self._config.max_tokens - used, self._config.max_sampled_tokens - self._num_sampled
        )

    async def sample(self, turn: int, room: int) -> tuple[str, Message | ParseFailure]:
        """Send what is pending, sample a turn of at most `room` tokens after it, and parse it.

        Returns:
            Why sampling stopped, and what the policy wrote; both are recorded.
        """
        assert self._session is not None
        started = time.perf_counter()
        sampling = SamplingConfig(
            temperature=self._attempt.temperature,
            max_tokens=room,
            stop_token_ids=(self._tokenizer.end_id,),
            seed=self._attempt.turn_seed(turn),
        )
        token_ids = [token_id for piece in self._pending for token_id in piece.token_ids]
        generation = await self._session.extend(token_ids, sampling)
        # Replies belong to the turn that they answer, the opening to turn 0.
        self.transcript.append_pieces(
            self._pending, turn=max(0, turn - 1), policy_version=generation.prompt_version
        )
        self._pending = []
        span = self.transcript.append_generation(generation, turn=turn)
        self._num_sampled += len(generation.token_ids)
        action = self._parser.parse(generation.token_ids.tolist())
        message = action
        if isinstance(action, ParseFailure):
            message = Message(role=Role.POLICY, text=action.text)
        assert isinstance(message, Message)
        self.messages.append(message)
        if span is not None:
            self.turns.append(
                Turn(
                    index=turn,
                    action=message,
                    span=span,
                    segment=0,
                    finish=generation.finish,
                    seconds=time.perf_counter() - started,
                )
            )
        return generation.finish, action

    def append_replies(self, replies: Sequence[Message], seconds: float) -> None:
        """Record the replies to the last turn, which took `seconds` with its tools."""
        self.messages += replies
        self._pending = self._renderer.render_replies(replies)
        if self.turns:
            self.turns[-1] = replace(self.turns[-1], seconds=seconds)

    async def close(self) -> SessionReport:
        """End the session; an episode that never sampled still has the tokens of a bare opening."""
        if not len(self.transcript):
            renderer = Renderer(self._tokenizer, ())
            opening = renderer.render_opening(self.messages[0].text if self.messages else "")
            self.transcript.append_pieces(opening, turn=0, policy_version=self._engine.version)
        if self._session is None:
            return SessionReport(expert_ids=None, computed_tokens=0)
        return await self._session.close()


def count_tokens(pieces: Sequence[Piece]) -> int:
    """Count the tokens of some pieces."""
    return sum(len(piece.token_ids) for piece in pieces)
