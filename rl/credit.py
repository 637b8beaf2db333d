r"""Credit: from the outcomes of a group to an advantage for every token that the policy wrote.

Takes groups, returns samples. The rule `rloo` (leave-one-out REINFORCE; Kool, van Hoof & Welling
2019, "Buy 4 REINFORCE samples, get a baseline for free!") gives sibling i of a group with rewards
R_1 .. R_n the advantage

    A_i = R_i - 1/(n-1) * sum_{j != i} R_j   =   n/(n-1) * (R_i - mean(R))

on each of its POLICY tokens. The baseline of i does not contain i, so it is independent of what i
sampled and the policy gradient keeps its expectation. There is no division by the group's standard
deviation: that would weight tasks by how hard they are.

Only siblings with a score count. One whose outcome is Invalid says nothing about the policy: it is
in no baseline and in no batch, and n is the number of the others. With n < 2 there is no baseline,
and the group gives no sample.

A group whose rewards are all equal does give samples, with advantage 0: no policy gradient, but
their tokens count in the one denominator of the loss and pay its squared log-ratio. DAPO (arXiv
2503.14476) drops such groups and samples others in their place. They are kept here because

- an update then shrinks with the share of groups that say something; dropped, the few that are left
  would move the policy as far as a full batch, the more so the closer a task is to solved or lost;
- where nothing can be learned, the squared log-ratio holds the policy to what sampled the group;
- what a step costs and when it is complete do not depend on the rewards.
"""

from collections.abc import Callable, Sequence

import numpy as np

from rl.batch import Sample
from rl.config import CreditSection
from rl.dotted_path import load_attribute
from rollout.trajectory import Group, Trajectory

CreditRule = Callable[[Sequence[Group]], list[Sample]]
"""From the groups of a step to its samples. A rule may leave out trajectories and segments; it
gives a token that the policy did not write the advantage 0 (`Sample` checks it)."""


def assign_credit(groups: Sequence[Group], section: CreditSection) -> list[Sample]:
    """Apply the configured rule.

    Args:
        groups: All groups of one step.
        section: `type` names the rule, `rloo` or a dotted path `package.module:function`.

    Returns:
        Samples, one per segment of each trajectory that counts, in the order of the groups.

    Raises:
        ValueError: no such rule.
    """
    return load_rule(section.type)(groups)


def load_rule(name: str) -> CreditRule:
    """Find a credit rule by name or dotted path.

    Raises:
        ValueError: no such rule.
    """
    return rloo if name == "rloo" else load_attribute("credit.type", name, known=("rloo",))


def rloo(groups: Sequence[Group]) -> list[Sample]:
    """Give every sibling its score minus the mean score of the others (equation above)."""
    samples: list[Sample] = []
    for group in groups:
        scored = [(member, member.reward) for member in group.trajectories]
        valid = [(member, reward) for member, reward in scored if reward is not None]
        if len(valid) < 2:
            continue
        total = sum(reward for _, reward in valid)
        for member, reward in valid:
            advantage = reward - (total - reward) / (len(valid) - 1)
            samples += spread(member, advantage)
    return samples


def spread(trajectory: Trajectory, advantage: float) -> list[Sample]:
    """Give every token that the policy wrote in a trajectory the same advantage.

    Returns:
        One sample for each segment in which the policy wrote anything.
    """
    return [
        Sample(segment=segment, advantages=segment.loss_mask * np.float32(advantage))
        for segment in trajectory.segments
        if segment.loss_mask.any()
    ]
