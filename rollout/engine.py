"""What the agent loop needs of an inference engine: conversations, tokens in and tokens out."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Float32, Int16, Int32

from rollout.sampling_mask import SamplingMask

MAX_SUPPORT = 256
"""Tokens that top-p sampling chooses among, at most: bounds what is recorded of a token."""


class EngineError(RuntimeError):
    """The engine cannot start, serve or take weights; the message is one line a user can act on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """How a turn is sampled."""

    temperature: float = 1.0
    """Divides the logits; log-probs returned are those of the divided logits."""
    top_p: float = 1.0
    """Below 1, sampling is among the likeliest tokens that have this probability together, at most
    MAX_SUPPORT; log-probs returned are relative to them."""
    max_tokens: int = 64
    """Sampled tokens at most in this turn."""
    stop_token_ids: tuple[int, ...] = ()
    """Sampling ends after one of these; it is part of the result."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What one turn sampled."""

    token_ids: Int32[np.ndarray, " T"]
    logprobs: Float32[np.ndarray, " T"]
    versions: Int32[np.ndarray, " T"]
    """Policy version that sampled each token."""
    sampling_mask: SamplingMask | None = None
    """What each token was sampled from; None: the whole vocabulary."""
    finish: str
    """`stop`, `length` or `abort`."""
    prompt_version: int
    """Policy version under which the appended tokens were computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReport:
    """What a closed session leaves behind."""

    expert_ids: Int16[np.ndarray, "T L A"] | None
    """Routing of every computed token, in order; None where the model has no experts."""
    computed_tokens: int
    """Tokens computed for the session, recomputation ordered by a publish excluded."""
    publish_recomputed_tokens: int = 0


class Session(Protocol):
    """One conversation: its KV and KDA state stay in the engine between turns."""

    async def extend(self, token_ids: list[int], sampling: SamplingConfig) -> Generation:
        """Append `token_ids` to the conversation and sample a turn after them."""
        ...

    async def close(self) -> SessionReport:
        """End the conversation and free its state. Idempotent."""
        ...


class Engine(Protocol):
    """Opens sessions and holds one version of the weights at a time."""

    @property
    def version(self) -> int:
        """Policy version of the weights held now."""
        ...

    async def open(self, session_id: str) -> Session:
        """Start a conversation."""
        ...

    async def score(self, token_ids: list[int]) -> Float32[np.ndarray, " T"]:
        """Log-probability (temperature 1) of each token given those before it; index 0 is 0."""
        ...
