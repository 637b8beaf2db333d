"""What a program says to the policy, as tokens: one rollout of the gateway.

Takes chat requests, each with the whole history; gives replies, and at the end the segments and
turns of a `Trajectory`. Token in, token out: what the policy sampled is never encoded again.

    request 1   user                                    -> policy A     segment 0: user A
    request 2   user A tool                             -> policy B     segment 0: user A tool B
    request 3   summary tool                            -> policy C     segment 1: summary tool C

A request that continues what was said goes on in the engine's session. One that does not (a
compacted history, other tools, a second conversation) begins a new segment. There, what the policy
sampled before is part of the prompt: each sampled token trains once.
"""

import asyncio
import json
import time
from collections.abc import Sequence

from envs.episode import StopReason
from envs.messages import JsonValue, Message, Role, ToolCall, ToolSpec
from rollout.chat import ChatReply, ChatRequest, RequestError
from rollout.config import RolloutConfig
from rollout.conversation import Attempt
from rollout.engine import Engine, EngineError, Generation, SamplingConfig, Session
from rollout.renderer import Piece, describe_tools, spell_argument
from rollout.tokenizer import Tokenizer
from rollout.tool_parser import split
from rollout.trajectory import Segment, Source, Turn
from rollout.transcript import Transcript


class Recorder:
    """One rollout: answers its requests, one at a time, and records them."""

    def __init__(
        self, attempt: Attempt, engine: Engine, tokenizer: Tokenizer, config: RolloutConfig
    ) -> None:
        """Begin a rollout.

        Args:
            attempt: Temperature and seeds: the run's, whatever the program asks for, because the
                learner has to know them.
            engine: Samples.
            tokenizer: The policy's.
            config: Budgets: `max_tokens` for each segment, `max_sampled_tokens` and `max_turns`
                for the rollout.
        """
        self.messages: list[Message] = []
        """Everything said, in order; of a new segment only what is new."""
        self.turns: list[Turn] = []
        self.segments: list[Segment] = []
        """Finished ones."""
        self.stop: StopReason | None = None
        """The budget that ended the rollout, or ABORTED."""
        self.engine_error: EngineError | None = None
        self.computed_tokens = 0
        self.publish_recomputed_tokens = 0
        self._attempt = attempt
        self._engine = engine
        self._tokenizer = tokenizer
        self._config = config
        self._lock = asyncio.Lock()
        self._session: Session | None = None
        self._transcript = Transcript()
        self._history: tuple[Message, ...] = ()
        """What the open segment holds."""
        self._tools: tuple[ToolSpec, ...] = ()
        self._sampled: dict[str, tuple[int, ...]] = {}
        """Tokens of each policy message, by the message: what is said again keeps its tokens."""
        self._is_cut = False
        self._num_sampled = 0

    async def reply(self, request: ChatRequest) -> ChatReply:
        """Let the policy answer.

        Raises:
            RequestError: a budget is spent, or sampling was aborted.
            EngineError: the engine failed.
        """
        async with self._lock:
            if self.stop is not None:
                raise RequestError(f"the episode is over: {self.stop}", code="episode_over")
            try:
                return await self._reply(request)
            except EngineError as error:
                self.engine_error = error
                raise

    async def close(self) -> None:
        """End the rollout: no further reply, and all its tokens are in `segments`."""
        async with self._lock:
            self.stop = self.stop or StopReason.FINISHED
            await self._end_segment()

    async def _reply(self, request: ChatRequest) -> ChatReply:
        if len(self.turns) >= self._config.max_turns:
            self._spend(StopReason.MAX_TURNS)
        started = time.perf_counter()
        is_continued = self._is_continued(request)
        if not is_continued:
            await self._end_segment()
            self._tools = request.tools
        pieces = self._render(request, is_continued=is_continued)
        prompt_length = len(self._transcript) + sum(len(piece.token_ids) for piece in pieces)
        sampling = self._sampling(request, prompt_length)
        if self._session is None:
            number = len(self.segments)
            self._session = await self._engine.open(
                f"{self._attempt.id}/{number}" if number else self._attempt.id
            )
        token_ids = [token_id for piece in pieces for token_id in piece.token_ids]
        generation = await self._session.extend(token_ids, sampling)
        message = self._record(request, pieces, generation, time.perf_counter() - started)
        if generation.finish == "abort":
            self._spend(StopReason.ABORTED)
        return ChatReply(
            id=str(len(self.turns)),
            message=message,
            is_cut=self._is_cut,
            num_prompt_tokens=prompt_length,
            num_sampled_tokens=len(generation.token_ids),
        )

    def _is_continued(self, request: ChatRequest) -> bool:
        """Whether the request goes on where the open segment stands."""
        said = len(self._history)
        return (
            self._session is not None
            and request.tools == self._tools
            and len(request.messages) > said
            and request.messages[:said] == self._history
        )

    def _render(self, request: ChatRequest, *, is_continued: bool) -> list[Piece]:
        """Render what the open segment lacks, up to the point where the policy speaks."""
        new = request.messages[len(self._history) :] if is_continued else request.messages
        end = self._tokenizer.end_id
        if is_continued:
            pieces = [Piece(token_ids=(end,), source=Source.TEMPLATE)] if self._is_cut else []
        else:
            pieces = self._render_tools(request.tools)
        for message in new:
            pieces += self._render_message(message)
        pieces.append(Piece(token_ids=(self._tokenizer.policy_id,), source=Source.TEMPLATE))
        return [piece for piece in pieces if piece.token_ids]

    def _render_tools(self, tools: Sequence[ToolSpec]) -> list[Piece]:
        tokenizer = self._tokenizer
        if not tools:
            return []
        token_ids = (tokenizer.tools_id, *tokenizer.encode(describe_tools(tools)), tokenizer.end_id)
        return [Piece(token_ids=token_ids, source=Source.TEMPLATE)]

    def _render_message(self, message: Message) -> list[Piece]:
        tokenizer = self._tokenizer
        marker, source, token_ids = {
            Role.USER: (tokenizer.user_id, Source.PROMPT, ()),
            Role.TOOL: (tokenizer.tool_id, Source.TOOL, ()),
            Role.POLICY: (tokenizer.policy_id, Source.PROMPT, self._policy_tokens(message)),
        }[message.role]
        if message.role is not Role.POLICY:
            token_ids = tuple(tokenizer.encode(message.text))
        return [
            Piece(token_ids=(marker,), source=Source.TEMPLATE),
            Piece(token_ids=token_ids, source=source),
            Piece(token_ids=(tokenizer.end_id,), source=Source.TEMPLATE),
        ]

    def _policy_tokens(self, message: Message) -> tuple[int, ...]:
        """The tokens of a policy message without its end: as sampled, where it was sampled here."""
        if message.role is not Role.POLICY:
            return ()
        known = self._sampled.get(_key(message))
        if known is not None:
            return known
        tokenizer = self._tokenizer
        token_ids = tokenizer.encode(message.text) if message.text else []
        for call in message.tool_calls:
            token_ids += [tokenizer.call_id, *tokenizer.encode(call.name)]
            for value in call.arguments.values():
                token_ids += [tokenizer.arg_id, *tokenizer.encode(spell_argument(value))]
        return tuple(token_ids)

    def _sampling(self, request: ChatRequest, prompt_length: int) -> SamplingConfig:
        """Say how to sample the next turn, within what is left of the budgets."""
        room = min(
            self._config.max_tokens - prompt_length,
            self._config.max_sampled_tokens - self._num_sampled,
        )
        if room < 1:
            self._spend(StopReason.MAX_TOKENS)
        return SamplingConfig(
            temperature=self._attempt.temperature,
            top_p=self._config.top_p,
            max_tokens=min(room, request.max_tokens or room),
            stop_token_ids=(self._tokenizer.end_id,),
            seed=self._attempt.turn_seed(len(self.turns)),
        )

    def _spend(self, stop: StopReason) -> None:
        """End the rollout, and tell the program so that it gives up.

        Raises:
            RequestError: always.
        """
        self.stop = stop
        raise RequestError(f"the episode is over: {stop}", code="context_length_exceeded")

    def _record(
        self,
        request: ChatRequest,
        pieces: Sequence[Piece],
        generation: Generation,
        seconds: float,
    ) -> Message:
        """Record a turn, and return what the policy said."""
        index = len(self.turns)
        self._transcript.append_pieces(
            pieces, turn=max(0, index - 1), policy_version=generation.prompt_version
        )
        span = self._transcript.append_generation(generation, turn=index)
        token_ids = generation.token_ids.tolist()
        self._num_sampled += len(token_ids)
        self._is_cut = not token_ids or token_ids[-1] != self._tokenizer.end_id
        body = token_ids if self._is_cut else token_ids[:-1]
        message = read_message(self._tokenizer, self._tools, body)
        self._sampled[_key(message)] = tuple(body)
        self.messages += self._new_messages(request)
        self.messages.append(message)
        self._history = (*request.messages, message)
        if span is not None:
            self.turns.append(
                Turn(
                    index=index,
                    action=message,
                    span=span,
                    segment=len(self.segments),
                    finish=generation.finish,
                    seconds=seconds,
                )
            )
        return message

    def _new_messages(self, request: ChatRequest) -> list[Message]:
        """What a request adds to what was said; the policy's own words were there before."""
        said = self._history
        new = request.messages[len(said) :] if request.messages[: len(said)] == said else ()
        return [message for message in new or request.messages if message.role is not Role.POLICY]

    async def _end_segment(self) -> None:
        """Close the session and keep its tokens."""
        session, self._session = self._session, None
        transcript, self._transcript = self._transcript, Transcript()
        self._history, self._is_cut = (), False
        if session is None:
            return
        report = await session.close()
        self.computed_tokens += report.computed_tokens
        self.publish_recomputed_tokens += report.publish_recomputed_tokens
        if len(transcript):
            self.segments.append(transcript.to_segment(report.expert_ids))


def read_message(
    tokenizer: Tokenizer, tools: Sequence[ToolSpec], token_ids: Sequence[int]
) -> Message:
    """Read a policy message for a program, which does its own checking.

    Args:
        tokenizer: The policy's.
        tools: What the request offers: their parameters name the arguments, in order.
        token_ids: What was sampled, without the end token.

    Returns:
        The message. A call of an unknown tool, or with arguments of another type, is passed on as
        it is; an argument too many is called `argument_<n>`. Other markers are left out.
    """
    text, *calls = split(token_ids, tokenizer.call_id)
    specs = {tool.name: tool for tool in tools}
    tool_calls = []
    for call in calls:
        name, *texts = (tokenizer.decode(part) for part in split(call, tokenizer.arg_id))
        parameters = specs[name].parameters if name in specs else ()
        arguments: dict[str, JsonValue] = {}
        for index, spelled in enumerate(texts):
            if index < len(parameters):
                kind = parameters[index].type
                arguments[parameters[index].name] = _read_value(kind, spelled)
            else:
                arguments[f"argument_{index + 1}"] = spelled
        tool_calls.append(ToolCall(name=name, arguments=arguments))
    return Message(role=Role.POLICY, text=tokenizer.decode(text), tool_calls=tuple(tool_calls))


def _read_value(kind: str, text: str) -> JsonValue:
    """Read an argument: text as it is, all else as JSON where it is JSON."""
    if kind == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _key(message: Message) -> str:
    calls = [[call.name, dict(call.arguments)] for call in message.tool_calls]
    return json.dumps([message.text, calls], sort_keys=True)
