"""Trajectories as rows of turns: what baselines, temporal rules and scales compute on.

Credit is assigned in turns, whatever a turn's number of tokens: a decay per token would make a long
answer forget faster than a short one. Arrays are [I, H], I trajectories of at most H turns; behind
a trajectory's last turn they hold zeros, and `mask` is False.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float64, Int64


@dataclass(frozen=True, kw_only=True)
class TurnGrid:
    """The turns of a step's trajectories.

    Worked example, two siblings of one group, the second cut off after two turns of unknown worth:

        rewards       0   0   1        lengths  3        final_values  0
                      0   0   .                 2                      0.4

    Raises:
        ValueError: shapes disagree, a length is not in [1, H], or a number is not finite.
    """

    rewards: Float64[np.ndarray, "I H"]
    """What came after each turn; an outcome comes after the last."""
    lengths: Int64[np.ndarray, " I"]
    """Turns of each trajectory."""
    groups: Int64[np.ndarray, " I"]
    """Number of the group: siblings share it."""
    final_values: Float64[np.ndarray, " I"]
    """Worth of what would have come after the last turn: 0 where the episode ended, the critic's
    estimate where it was cut off."""
    values: Float64[np.ndarray, "I H"] | None = None
    """The critic's estimate before each turn; None without a critic."""
    states: Int64[np.ndarray, "I H"] | None = None
    """Number of the state before each turn, equal where states are equal; None if not known."""

    def __post_init__(self) -> None:
        count, most = self.rewards.shape
        for name in ("lengths", "groups", "final_values"):
            if getattr(self, name).shape != (count,):
                raise ValueError(f"{count} trajectories but {len(getattr(self, name))} {name}")
        for name in ("values", "states"):
            array = getattr(self, name)
            if array is not None and array.shape != (count, most):
                raise ValueError(f"rewards are {(count, most)} but {name} are {array.shape}")
        if count and not ((self.lengths >= 1) & (self.lengths <= most)).all():
            raise ValueError(f"a trajectory's length is not in [1, {most}]")
        numbers = [self.rewards, self.final_values, *([] if self.values is None else [self.values])]
        if not all(np.isfinite(array).all() for array in numbers):
            raise ValueError("a reward or a value is not finite")

    @cached_property
    def mask(self) -> Bool[np.ndarray, "I H"]:
        """True where there is a turn."""
        return np.arange(self.rewards.shape[1]) < self.lengths[:, None]

    @cached_property
    def returns(self) -> Float64[np.ndarray, " I"]:
        """Sum of each trajectory's rewards and its final value, undiscounted."""
        return self.rewards.sum(axis=1) + self.final_values
