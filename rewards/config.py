"""What becomes of an episode without a score, by reason: tried again, left out, or counted as 0."""

from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rewards.reward import Blame, Invalid


class InvalidAction(StrEnum):
    """What is done about an Invalid outcome."""

    MASK = "mask"
    """Left out of statistics, baselines and batch: what happens where no rule says otherwise."""
    RETRY = "retry"
    """Attempted again with fresh seeds; masked where no retry is left."""
    ZERO = "zero"
    """Scored 0: for what the policy itself did, and for nothing else."""


class InvalidRule(BaseModel):
    """What is done about one reason; a rule holds only where the blame is the one it names.

    Raises:
        ValueError: `zero` for what is not the model's fault, or `retry` for what is. The first
            would teach the policy about the weather; the second would let it draw again until it
            is lucky, and bias its group.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    action: InvalidAction
    """`mask`, `retry` or `zero`."""
    blame: Blame
    """Who must be to blame: `model`, `environment`, `infrastructure` or `grader`."""
    max_retries: int = Field(default=2, ge=1, le=10)
    """Further attempts of an episode, at most; for `retry` alone."""

    @model_validator(mode="after")
    def action_suits_the_blame(self) -> Self:
        """Zero is for the model, retries are for everything else."""
        if self.action is InvalidAction.ZERO and self.blame is not Blame.MODEL:
            raise ValueError(
                f'action = "zero" with blame = "{self.blame}": only what the model did may count '
                "as 0; use mask or retry"
            )
        if self.action is InvalidAction.RETRY and self.blame is Blame.MODEL:
            raise ValueError(
                'action = "retry" with blame = "model": the policy would draw again until it is '
                "lucky; use mask or zero"
            )
        return self

    def applies_to(self, outcome: Invalid) -> bool:
        """Whether the outcome's blame is the one that the rule was written for."""
        return outcome.blame is self.blame
