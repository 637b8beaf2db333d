"""A trajectory: the tokens that a policy really saw and wrote, who wrote each, and with what odds.

This file is the heart of the system. Everything that trains derives from it: the loss mask is a
property (who wrote the token), never stored; index `t` of every array describes token `t`, and
`behavior_logprobs[t]` is the log-probability (nats, temperature applied) of token `t` given the
tokens before it.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float32, Int16, Int32

from envs.episode import Episode
from envs.messages import Message
from envs.task import Task
from rewards.reward import Invalid, Outcome, Scored
from rollout.sampling_mask import SamplingMask

NO_EXPERT = -1
"""Expert id of a token that the engine never computed (the last sampled one): no replay."""


class Source(StrEnum):
    """Who wrote a token."""

    TEMPLATE = "template"
    """The renderer: role markers and the like."""
    PROMPT = "prompt"
    """The task's opening."""
    POLICY = "policy"
    """The policy in its episode."""
    SUB_AGENT = "sub_agent"
    """The policy, asked by itself, where that trains (`rollout.sub_agent.trains`)."""
    MASKED_SUB_AGENT = "masked_sub_agent"
    """The policy, asked by itself, where that does not train."""
    TOOL = "tool"
    """A tool's reply."""

    @property
    def is_sampled(self) -> bool:
        """Whether the engine sampled such a token: it has a log-probability."""
        return self in (Source.POLICY, Source.SUB_AGENT, Source.MASKED_SUB_AGENT)

    @property
    def trains(self) -> bool:
        """Whether such a token gets credit."""
        return self in (Source.POLICY, Source.SUB_AGENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpan:
    """Tokens `start` to `stop` (half-open) of a segment that one writer wrote in one turn."""

    start: int
    stop: int
    source: Source
    turn: int
    """Index of the turn, from 0; the opening belongs to turn 0."""
    policy_version: int
    """Version of the weights that sampled (POLICY) or that were current when appended (others)."""

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop:
            raise ValueError(f"span [{self.start}, {self.stop}) is empty or negative")


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One token sequence that the policy saw. A rewritten history starts a new one.

    Worked example, two turns (`<..>` are template tokens, P prompt, A sampled, R tool reply):

        tokens   <user> P P <end> <policy>  A A <end>  <tool> R <end> <policy>  A <end>
        source   T      P P T     T         A A A      T      R T     T         A A
        logprob  0      0 0 0     0         - - -      0      0 0     0         - -

    The `<end>` that closes a policy message is sampled: it is the policy's own.

    Raises:
        ValueError: spans do not tile [0, T), or policy versions decrease, or a log-probability is
            positive or not finite on a sampled token or not exactly 0 elsewhere, or a token is
            not among those that it was sampled from, or lengths disagree.
    """

    token_ids: Int32[np.ndarray, " T"]
    spans: tuple[TokenSpan, ...]
    behavior_logprobs: Float32[np.ndarray, " T"]
    expert_ids: Int16[np.ndarray, "T L A"] | None = None
    """Chosen experts per token and MoE layer, NO_EXPERT where the engine computed none."""
    sampling_mask: SamplingMask | None = None
    """What each token was sampled from; None: the whole vocabulary, all of them."""

    def __post_init__(self) -> None:
        length = len(self.token_ids)
        at = 0
        for span in self.spans:
            if span.start != at:
                raise ValueError(f"spans do not tile: expected a span at {at}, got {span.start}")
            at = span.stop
        if at != length or len(self.behavior_logprobs) != length:
            raise ValueError(
                f"{length} tokens, spans end at {at}, {len(self.behavior_logprobs)} log-probs"
            )
        if self.expert_ids is not None and len(self.expert_ids) != length:
            raise ValueError(f"{length} tokens but {len(self.expert_ids)} rows of expert ids")
        if self.sampling_mask is not None:
            self.sampling_mask.require(self.token_ids)
        versions = [span.policy_version for span in self.spans]
        if versions != sorted(versions):
            raise ValueError("policy versions decrease in a segment")
        is_sampled = self.sampled_mask
        sampled = self.behavior_logprobs[is_sampled]
        if not (np.isfinite(sampled).all() and (sampled <= 0).all()):
            raise ValueError("a sampled token's log-probability is positive or not finite")
        if self.behavior_logprobs[~is_sampled].any():
            raise ValueError("a token that the policy did not write has a log-probability")

    @cached_property
    def loss_mask(self) -> Bool[np.ndarray, " T"]:
        """True where the policy wrote the token to train on it: the one definition of that."""
        return self._mask({source for source in Source if source.trains})

    @cached_property
    def sampled_mask(self) -> Bool[np.ndarray, " T"]:
        """True where the engine sampled the token, masked sub-agents included."""
        return self._mask({source for source in Source if source.is_sampled})

    def _mask(self, sources: set[Source]) -> Bool[np.ndarray, " T"]:
        mask = np.zeros(len(self.token_ids), dtype=bool)
        for span in self.spans:
            mask[span.start : span.stop] = span.source in sources
        return mask

    @cached_property
    def turn_of_token(self) -> Int32[np.ndarray, " T"]:
        """Turn index of each token."""
        turns = np.zeros(len(self.token_ids), dtype=np.int32)
        for span in self.spans:
            turns[span.start : span.stop] = span.turn
        return turns

    @cached_property
    def version_of_token(self) -> Int32[np.ndarray, " T"]:
        """Policy version of each token."""
        versions = np.zeros(len(self.token_ids), dtype=np.int32)
        for span in self.spans:
            versions[span.start : span.stop] = span.policy_version
        return versions

    @property
    def single_version_length(self) -> int:
        """Length of the longest prefix whose spans all carry the first span's version."""
        first = self.spans[0].policy_version
        for span in self.spans:
            if span.policy_version != first:
                return span.start
        return len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One policy message: the unit of recording and of recovery."""

    index: int
    """From 0; a sub-agent counts its own."""
    action: Message
    span: TokenSpan
    """The sampled tokens, in the segment `segment`."""
    segment: int
    finish: str
    """Why sampling stopped: `stop` (the end token), `length` or `abort`."""
    seconds: float
    """Wall time of the turn: sampling and tools."""


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """One attempt at a task in tokens, with its episode and outcome.

    Raises:
        ValueError: no segment, or one that began before the first.
    """

    id: str
    """`<task id>#<sibling>@<round>`: unique in a run; seeds derive from it."""
    episode: Episode
    segments: tuple[Segment, ...]
    turns: tuple[Turn, ...]
    outcome: Outcome
    computed_tokens: int = 0
    """Tokens the engine computed for it (prefill and decode), publish recomputation excluded."""
    publish_recomputed_tokens: int = 0
    """Tokens computed again because a publish ordered it."""

    def __post_init__(self) -> None:
        if not self.segments:
            raise ValueError(f"trajectory {self.id!r} has no segment")
        starts = [segment.spans[0].policy_version for segment in self.segments]
        if starts != sorted(starts):
            raise ValueError(f"trajectory {self.id!r}: policy versions of its segments decrease")

    @property
    def reward(self) -> float | None:
        """The score, or None where the outcome is Invalid."""
        return self.outcome.value if isinstance(self.outcome, Scored) else None

    @property
    def invalid(self) -> Invalid | None:
        """The invalid outcome, or None where it is scored."""
        return self.outcome if isinstance(self.outcome, Invalid) else None

    @property
    def num_tokens(self) -> int:
        """Tokens of all segments."""
        return sum(len(segment.token_ids) for segment in self.segments)

    @property
    def num_sampled(self) -> int:
        """Tokens that the policy wrote and trains on."""
        return sum(int(segment.loss_mask.sum()) for segment in self.segments)

    @property
    def first_version(self) -> int:
        """Policy version at the start: what the lag bound looks at."""
        return self.segments[0].spans[0].policy_version


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Siblings: independent attempts at one task.

    Raises:
        ValueError: no trajectory, or one of another task.
    """

    id: str
    task: Task
    trajectories: tuple[Trajectory, ...]

    def __post_init__(self) -> None:
        if not self.trajectories:
            raise ValueError(f"group {self.id!r} is empty")
        for trajectory in self.trajectories:
            if trajectory.episode.task.id != self.task.id:
                raise ValueError(f"group {self.id!r} holds a trajectory of another task")
