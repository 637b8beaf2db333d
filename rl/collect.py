"""Collection alone: engines, agent loops and graders, without a learner.

Takes a configuration, returns groups; `limosa collect`. Training and evaluation start their engines
through `start_collector` too.
"""

import itertools
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from envs.environment import Split
from envs.task_sets import load_tasks
from rl.config import RunConfig
from rl.group_buffer import PlannedGroup, plan_groups
from rl.progress import Progress
from rollout.collector import Collector
from rollout.group_runner import gather
from rollout.trajectory import Group

CollectGroup = Callable[[PlannedGroup], Coroutine[Any, Any, Group]]
"""Collects one group of siblings."""
NUM_SPARES = 1024
"""Groups of one cycle of spares."""
SPARE_ROUNDS = 1_000_000
"""Rounds from one cycle of spares to the next, and from the run's own to the first."""


def start_collector(
    config: RunConfig, checkpoint: Path, log_folder: Path
) -> AbstractAsyncContextManager[Collector]:
    """Start engines on a checkpoint; leaving the context ends them, and Ray where we started it.

    Args:
        config: Sections `rollout`, `environments` and `run.seed`.
        checkpoint: Folder of the weights that the engines begin with.
        log_folder: Where engines and actors write their logs.
    """
    log_folder.mkdir(parents=True, exist_ok=True)
    return Collector.start(
        checkpoint,
        config.environments,
        config.rollout,
        seed=config.run.seed,
        log_folder=log_folder,
    )


def plan_training(config: RunConfig, num_groups: int) -> list[PlannedGroup]:
    """Plan groups over the training tasks of all environments, by their weights.

    Raises:
        ValueError: an environment has no training task, or its task file is bad.
    """
    tasks = {
        name: load_tasks(name, environment, Split.TRAIN)
        for name, environment in config.environments.items()
    }
    weights = {name: environment.weight for name, environment in config.environments.items()}
    return plan_groups(tasks, weights, num_groups, config.run.seed)


def collect_with(collector: Collector, group_size: int) -> CollectGroup:
    """Return what collects a planned group with `group_size` siblings."""

    async def collect_one(planned: PlannedGroup) -> Group:
        return await collector.collect_group(planned.task, group_size, planned.round)

    return collect_one


def spare_groups(config: RunConfig) -> Iterator[PlannedGroup]:
    """Plan groups of training tasks beyond those of the run's steps, without end.

    Their rounds are far from the run's own, so no episode of them is one of a step.
    """
    plan = plan_training(config, NUM_SPARES)
    for cycle in itertools.count(1):
        for planned in plan:
            yield replace(planned, round=planned.round + cycle * SPARE_ROUNDS)


async def collect(
    config: RunConfig, num_groups: int, progress: Progress, log_folder: Path
) -> list[Group]:
    """Collect the groups that a training run would collect first.

    Args:
        config: Which environments, engines and budgets; the checkpoint is the configuration's.
        num_groups: Tasks; each is attempted `credit.group_size` times.
        progress: Is told what goes on.
        log_folder: Where engines and actors write their logs.

    Returns:
        The groups, in the order of the plan.

    Raises:
        ValueError: the checkpoint, an environment or a task file is bad.
        EngineError: the engines do not start, or one fails.
    """
    plan = plan_training(config, num_groups)
    num_done = 0
    progress.stage("starting the engines")
    async with start_collector(config, config.model.checkpoint, log_folder) as collector:

        async def collect_one(planned: PlannedGroup) -> Group:
            nonlocal num_done
            group = await collector.collect_group(
                planned.task, config.credit.group_size, planned.round
            )
            num_done += 1
            progress.count("groups", num_done, len(plan))
            return group

        return await gather([collect_one(planned) for planned in plan])
