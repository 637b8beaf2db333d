"""One conversation of the policy: its session, its transcript, and what is not yet sent.

An episode is one conversation, and one more for every question that its policy asks a sub-agent.
Each becomes a segment of the trajectory. Token in, token out: nothing is encoded twice.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from envs.messages import Message, Role, ToolSpec
from envs.task import Task
from rollout.config import RolloutConfig
from rollout.engine import Engine, SamplingConfig, Session, SessionReport
from rollout.renderer import Piece, Renderer
from rollout.seeds import derive_seed
from rollout.tokenizer import Tokenizer
from rollout.tool_parser import ParseFailure, ToolParser
from rollout.trajectory import Segment, Source, Turn
from rollout.transcript import Transcript


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

    def turn_seed(self, turn: int, segment: int = 0) -> int:
        """Seed of a turn's sampling: the same attempt samples the same at the same weights."""
        keys = (self.run_seed, self.task.id, self.sibling, self.round, turn)
        seed = derive_seed("turn", *keys, self.retry) if self.retry else derive_seed("turn", *keys)
        return derive_seed("segment", seed, segment) if segment else seed


@dataclass(slots=True)
class TokenBudget:
    """What the policy may still write in an episode, in all its conversations together."""

    sampled_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """Who speaks in the conversations of an episode, and within which limits."""

    attempt: Attempt
    engine: Engine
    tokenizer: Tokenizer
    config: RolloutConfig
    budget: TokenBudget


class Conversation:
    """The policy's side of one conversation: opened, sampled turn by turn, closed.

    Worked example:

        conversation = Conversation(player)
        await conversation.begin("which book?", tools)
        finish, action = await conversation.sample(turn=0, room=conversation.room())
        conversation.append_replies(replies, seconds=0.1)
        await conversation.close()
        conversation.segment                    # what was seen and written
    """

    def __init__(self, player: Player, *, segment: int = 0, author: Source = Source.POLICY) -> None:
        """Prepare a conversation.

        Args:
            player: Samples; a conversation takes from its budget.
            segment: Index of the conversation in the episode.
            author: Who the sampled tokens are by.
        """
        self.messages: list[Message] = []
        self.turns: list[Turn] = []
        self.report = SessionReport(expert_ids=None, computed_tokens=0)
        """What `close` learned of the session."""
        self._player = player
        self._index = segment
        self._author = author
        self._transcript = Transcript()
        self._session: Session | None = None
        self._pending: list[Piece] = []
        """Rendered, but not yet seen by the engine: an episode that ends here never sends it."""

    async def begin(
        self, opening: str, tools: Sequence[ToolSpec], *, takes_text: bool = False
    ) -> None:
        """Render the opening and start the session.

        Args:
            opening: What the policy reads first.
            tools: What it may call.
            takes_text: Whether plain text is an answer, where there are tools.
        """
        player = self._player
        self._renderer = Renderer(player.tokenizer, tools)
        self._parser = ToolParser(player.tokenizer, tools, takes_text=takes_text)
        self.messages.append(Message(role=Role.USER, text=opening))
        self._pending = self._renderer.render_opening(opening)
        name = f"{player.attempt.id}/{self._index}" if self._index else player.attempt.id
        self._session = await player.engine.open(name)

    @property
    def num_tokens(self) -> int:
        """Tokens so far, those that are not yet sent included."""
        pending = sum(len(piece.token_ids) for piece in self._pending)
        return len(self._transcript) + pending

    def room(self) -> int:
        """Tokens that the policy may still write; below 1, none."""
        player = self._player
        return min(player.config.max_tokens - self.num_tokens, player.budget.sampled_tokens)

    async def sample(self, turn: int, room: int) -> tuple[str, Message | ParseFailure]:
        """Send what is pending, sample a turn of at most `room` tokens after it, and parse it.

        Returns:
            Why sampling stopped, and what the policy wrote; both are recorded.
        """
        assert self._session is not None
        player = self._player
        started = time.perf_counter()
        sampling = SamplingConfig(
            temperature=player.attempt.temperature,
            top_p=player.config.top_p,
            max_tokens=room,
            stop_token_ids=(player.tokenizer.end_id,),
            seed=player.attempt.turn_seed(turn, self._index),
        )
        token_ids = [token_id for piece in self._pending for token_id in piece.token_ids]
        generation = await self._session.extend(token_ids, sampling)
        # Replies belong to the turn that they answer, the opening to turn 0.
        self._transcript.append_pieces(
            self._pending, turn=max(0, turn - 1), policy_version=generation.prompt_version
        )
        self._pending = []
        span = self._transcript.append_generation(generation, turn=turn, author=self._author)
        player.budget.sampled_tokens -= len(generation.token_ids)
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
                    segment=self._index,
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

    async def close(self) -> None:
        """End the session; one that never sampled still has the tokens of a bare opening."""
        player = self._player
        if not len(self._transcript):
            renderer = Renderer(player.tokenizer, ())
            opening = renderer.render_opening(self.messages[0].text if self.messages else "")
            self._transcript.append_pieces(opening, turn=0, policy_version=player.engine.version)
        if self._session is not None:
            self.report = await self._session.close()

    @property
    def segment(self) -> Segment:
        """The finished conversation, once it is closed."""
        return self._transcript.to_segment(self.report.expert_ids)
