"""An engine for unit tests: it plays token sequences that a script gives it, deterministically."""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float32, Int16

from rollout.engine import Generation, SamplingConfig, Session, SessionReport

Script = Callable[[str, int], Sequence[int]]
"""From session id and turn index to the tokens that the policy wants to write in that turn."""


class ScriptedEngine:
    """Plays a script through the `Engine` protocol, with its budgets and stop tokens.

    It computes what a real engine would compute: every token but the last sampled one, once.
    The log-probability of every sampled token is `log(1/2)`; the chosen experts of the token at
    position `t` are `t mod num_experts` in each layer and slot.
    """

    def __init__(
        self,
        script: Script,
        *,
        experts_shape: tuple[int, int] | None = None,
        num_experts: int = 8,
        seconds_per_turn: float = 0.0,
    ) -> None:
        """Play a script.

        Args:
            script: What each session samples in each turn.
            experts_shape: MoE layers and experts per token (L, A); None: a model without experts.
            num_experts: Experts per layer (E).
            seconds_per_turn: Time that sampling a turn takes.
        """
        self._script = script
        self._experts_shape = experts_shape
        self._num_experts = num_experts
        self._seconds_per_turn = seconds_per_turn
        self._version = 0
        self.open_sessions: set[str] = set()
        """Sessions that were opened and not closed."""
        self.max_open_sessions = 0
        """Most sessions that were ever open at once."""
        self.sampling: dict[str, list[SamplingConfig]] = {}
        """How each session was asked to sample, turn by turn."""

    @property
    def version(self) -> int:
        """Policy version; tests set it."""
        return self._version

    @version.setter
    def version(self, version: int) -> None:
        self._version = version

    async def open(self, session_id: str) -> Session:
        """Start a conversation.

        Raises:
            ValueError: a session of this id is open.
        """
        if session_id in self.open_sessions:
            raise ValueError(f"session {session_id!r} is open already")
        self.open_sessions.add(session_id)
        self.max_open_sessions = max(self.max_open_sessions, len(self.open_sessions))
        return ScriptedSession(self, session_id)

    async def score(self, token_ids: list[int]) -> Float32[np.ndarray, " T"]:
        """Give every token but the first the log-probability `log(1/2)`."""
        logprobs = np.full(len(token_ids), np.log(0.5), dtype=np.float32)
        logprobs[:1] = 0.0
        return logprobs

    async def sample(self, session_id: str, turn: int, sampling: SamplingConfig) -> list[int]:
        """Play a turn's tokens, cut by the stop tokens and the budget of the turn."""
        await asyncio.sleep(self._seconds_per_turn)
        self.sampling.setdefault(session_id, []).append(sampling)
        token_ids: list[int] = []
        for token_id in self._script(session_id, turn)[: sampling.max_tokens]:
            token_ids.append(token_id)
            if token_id in sampling.stop_token_ids:
                break
        return token_ids

    def route(self, num_tokens: int) -> Int16[np.ndarray, "T L A"] | None:
        """Choose the experts of the first `num_tokens` positions."""
        if self._experts_shape is None:
            return None
        experts = np.arange(num_tokens, dtype=np.int16) % self._num_experts
        return np.broadcast_to(experts[:, None, None], (num_tokens, *self._experts_shape)).copy()


class ScriptedSession:
    """One conversation with a scripted engine."""

    def __init__(self, engine: ScriptedEngine, session_id: str) -> None:
        """Open it through `ScriptedEngine.open`."""
        self._engine = engine
        self._session_id = session_id
        self._turn = 0
        self.token_ids: list[int] = []
        """The whole conversation so far."""

    async def extend(self, token_ids: list[int], sampling: SamplingConfig) -> Generation:
        """Append tokens and play the next turn of the script."""
        engine = self._engine
        prompt_version = engine.version
        sampled = await engine.sample(self._session_id, self._turn, sampling)
        self._turn += 1
        self.token_ids += [*token_ids, *sampled]
        has_stopped = bool(sampled) and sampled[-1] in sampling.stop_token_ids
        return Generation(
            token_ids=np.array(sampled, dtype=np.int32),
            logprobs=np.full(len(sampled), np.log(0.5), dtype=np.float32),
            versions=np.full(len(sampled), engine.version, dtype=np.int32),
            finish="stop" if has_stopped else "length",
            prompt_version=prompt_version,
        )

    async def close(self) -> SessionReport:
        """End the conversation; its last token was never computed."""
        self._engine.open_sessions.discard(self._session_id)
        computed = max(0, len(self.token_ids) - 1)
        return SessionReport(expert_ids=self._engine.route(computed), computed_tokens=computed)
