"""A reward is a typed outcome: scored, or invalid with a reason and who is to blame."""

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from envs.episode import Episode


class Blame(StrEnum):
    """Whose fault an invalid outcome is."""

    MODEL = "model"
    ENVIRONMENT = "environment"
    INFRASTRUCTURE = "infrastructure"
    GRADER = "grader"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A score in [0, 1] and its named parts.

    Raises:
        ValueError: the value is not finite or lies outside [0, 1].
    """

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and 0.0 <= self.value <= 1.0):
            raise ValueError(f"reward {self.value!r} is not a number in [0, 1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Invalid:
    """No score can be given. It never becomes 0: group statistics leave the member out."""

    reason: str
    """A short stable key, such as `sandbox_failed`: runs count outcomes by it."""
    blame: Blame
    detail: str = ""
    """One line for a person."""


def require_outcome(value: object) -> "Outcome":
    """Pass on what a grader returned.

    Raises:
        TypeError: it is no outcome.
    """
    if not isinstance(value, Scored | Invalid):
        raise TypeError(f"the grader returned {type(value).__name__}, not Scored or Invalid")
    return value


Outcome = Scored | Invalid
Grader = Callable[[Episode], Awaitable[Outcome]]
"""An async function of the episode alone. It may run sandboxes; it may not read the run."""
