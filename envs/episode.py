"""An episode: one attempt at a task, in text. It is all that a grader sees."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from envs.messages import JsonValue, Message
from envs.task import Task


class StopReason(StrEnum):
    """Why an episode ended."""

    FINISHED = "finished"
    """The environment said that it is done."""
    MAX_TURNS = "max_turns"
    """The turn budget ran out."""
    MAX_TOKENS = "max_tokens"
    """A token budget (sampled tokens, or the whole context) ran out."""
    UNPARSABLE = "unparsable"
    """The policy wrote something that is no message of the format."""
    ENVIRONMENT_ERROR = "environment_error"
    """The environment or its sandbox broke: the reward is Invalid, never 0."""
    ABORTED = "aborted"
    """The run stopped before the episode could end."""

    @property
    def is_truncation(self) -> bool:
        """Whether a budget, not the policy or the world, ended the episode."""
        return self in (StopReason.MAX_TURNS, StopReason.MAX_TOKENS)

    @property
    def is_failure(self) -> bool:
        """Whether the system or the world, not the policy, ended the episode."""
        return self in (StopReason.ENVIRONMENT_ERROR, StopReason.ABORTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One attempt at a task in text, from the opening message to the stop."""

    task: Task
    messages: tuple[Message, ...]
    stop: StopReason
    artifacts: Mapping[str, JsonValue] = field(default_factory=dict)
    """What the environment hands to the grader: a submitted answer, files."""
    error: str | None = None
    """One line on what broke, when `stop` is ENVIRONMENT_ERROR."""
