"""Value pre-training: a critic learns to expect what the policy brings before it judges any turn.

Takes a critic and a way to collect groups; the policy stays as it is. A critic that begins at
random, and is bootstrapped from at once, teaches its own error (VC-PPO, arXiv 2503.01491). Every
step judges fresh trajectories and then learns from them, so the explained variance that decides
when to stop is held out.
"""

import asyncio
import itertools
import math
from collections.abc import Iterator

from rl.collect import CollectGroup
from rl.config import RunConfig
from rl.critic import Critic
from rl.group_buffer import PlannedGroup
from rl.learner import Learner
from rl.monitor import Monitor
from rollout.group_runner import gather

LEAST_RISE = 0.01
"""Explained variance that has risen by less has not risen."""


async def pretrain(
    critic: Critic,
    learner: Learner,
    collect: CollectGroup,
    spares: Iterator[PlannedGroup],
    monitor: Monitor,
    config: RunConfig,
) -> None:
    """Train the critic alone, to a plateau of held-out explained variance.

    Args:
        critic: Learns.
        learner: Holds the policy that the trajectories are of; it is read only.
        collect: Collects one group.
        spares: What to collect, in order: groups of no training step.
        monitor: Records every step.
        config: `critic.pretrain_steps`, `critic.pretrain_patience`, `credit.groups_per_step`.

    Raises:
        ArithmeticError: the critic's gradient is not finite.
    """
    best, num_stale = -math.inf, 0
    for step in range(config.critic.pretrain_steps):
        planned = list(itertools.islice(spares, config.credit.groups_per_step))
        groups = await gather([collect(each) for each in planned])
        _, statistics = await asyncio.to_thread(critic.study, groups, learner.snapshot())
        if statistics is None:
            continue
        monitor.record_pretraining(step + 1, groups, statistics)
        explained = statistics.explained_variance
        if explained is None or explained < best + LEAST_RISE:
            num_stale += 1
        else:
            best, num_stale = explained, 0
        if num_stale >= config.critic.pretrain_patience:
            return
