"""Invalid outcomes: which are tried again, which count as 0, and which stay out of everything.

Takes a trajectory and the rules of the configuration. Leaving a member out is unbiased where its
failure has nothing to do with what the policy did. An infrastructure failure can become nothing
but a retry or a gap: no rule for it can say 0, and a rule holds for the blame it names alone.
"""

from collections.abc import Mapping
from dataclasses import replace

from rewards.config import InvalidAction, InvalidRule
from rewards.reward import Blame, Scored
from rollout.trajectory import Trajectory


def is_retried(trajectory: Trajectory, retry: int, rules: Mapping[str, InvalidRule]) -> bool:
    """Whether an episode is attempted again.

    Args:
        trajectory: What the attempt came to.
        retry: Retries before it.
        rules: By reason.
    """
    rule = _rule_for(trajectory, rules)
    return rule is not None and rule.action is InvalidAction.RETRY and retry < rule.max_retries


def settle(trajectory: Trajectory, rules: Mapping[str, InvalidRule]) -> Trajectory:
    """Score an episode 0 where a rule says so for what the model did; pass on any other as it is.

    The part `invalid/<reason>` of the score says that it was given by a rule.
    """
    rule, invalid = _rule_for(trajectory, rules), trajectory.invalid
    if rule is None or invalid is None or rule.action is not InvalidAction.ZERO:
        return trajectory
    assert invalid.blame is Blame.MODEL
    return replace(trajectory, outcome=Scored(value=0.0, parts={f"invalid/{invalid.reason}": 1.0}))


def _rule_for(trajectory: Trajectory, rules: Mapping[str, InvalidRule]) -> InvalidRule | None:
    invalid = trajectory.invalid
    rule = rules.get(invalid.reason) if invalid is not None else None
    return rule if rule and invalid and rule.applies_to(invalid) else None
