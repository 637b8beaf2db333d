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
    """A score in [0, 1], its named parts, and what each turn earned.

    Raises:
        ValueError: the value is not a number in [0, 1], or a part or a turn is no finite number.
    """

    value: float
    """Of the whole episode: what the credit rule `rloo` uses."""
    parts: Mapping[str, float] = field(default_factory=dict)
    turns: tuple[float, ...] = ()
    """One number per policy message, in order, or none at all; recorded for credit rules that
    give turns their own share. They need not add up to `value`."""

    def __post_init__(self) -> None:
        if not (_is_number(self.value) and 0.0 <= self.value <= 1.0):
            raise ValueError(f"reward {self.value!r} is not a number in [0, 1]")
        for name, part in self.parts.items():
            if not _is_number(part):
                raise ValueError(f"part {name} of the reward is {part!r}, no finite number")
        for turn, earned in enumerate(self.turns):
            if not _is_number(earned):
                raise ValueError(f"turn {turn} earned {earned!r}, no finite number")


def _is_number(value: object) -> bool:
    return isinstance(value, float | int) and math.isfinite(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invalid:
    """No score can be given. It never becomes 0: group statistics leave the member out."""

    reason: str
    """A short stable key, such as `sandbox_failed`: runs count outcomes by it."""
    blame: Blame
    detail: str = ""
    """One line for a person."""


def require_outcome(value: object, num_turns: int | None = None) -> "Outcome":
    """Pass on what a grader returned.

    Args:
        value: What it returned.
        num_turns: Policy messages of the episode; None leaves rewards per turn uncounted.

    Raises:
        TypeError: it is no outcome.
        ValueError: it has rewards per turn, but not one for each.
    """
    if not isinstance(value, Scored | Invalid):
        raise TypeError(f"the grader returned {type(value).__name__}, not Scored or Invalid")
    if isinstance(value, Scored) and value.turns and num_turns not in (None, len(value.turns)):
        raise ValueError(f"the grader gave {len(value.turns)} turns a reward, of {num_turns}")
    return value


Outcome = Scored | Invalid
Grader = Callable[[Episode], Awaitable[Outcome]]
"""An async function of the episode alone. It may run sandboxes; it may not read the run. Each call
runs in a thread with an event loop of its own (`rewards.grading`)."""
