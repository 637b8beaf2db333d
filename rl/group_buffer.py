"""The group buffer: collection goes on while the learner works, a bounded lag ahead.

Takes a plan (which tasks make up the batch of each step) and a function that collects one group;
returns the groups of a step. Steps count from 0, and step `s` updates the weights of version `s`.

    published version   0              1              2                       max_lag = 1
    may collect         steps 0, 1     step 2         step 3
    learner                step 0         step 1         step 2

Two promises. A group of step `s` starts only once version `s - max_lag` is published, so that no
token of it can be more than `max_lag` updates behind the weights it trains (0: strictly on-policy).
And the batch of step `s` is exactly the groups that were started for it: none is replaced because
it is slow, which would favour short episodes.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from envs.task import Task
from rollout.seeds import derive_seed
from rollout.trajectory import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGroup:
    """A group that is to be collected."""

    environment: str
    """The environment's key in the configuration."""
    task: Task
    round: int
    """How often the task was planned before: keeps the sampling seeds of its groups apart."""


def plan_groups(
    tasks: Mapping[str, Sequence[Task]],
    weights: Mapping[str, float],
    num_groups: int,
    seed: int,
) -> list[PlannedGroup]:
    """Decide which groups a run collects, in order; a function of its arguments alone.

    Every stretch of the plan holds the environments in proportion to their weights (the next group
    goes to the environment that is furthest behind its share), and each environment's tasks come
    in a shuffled order, all of them before any comes again.

    Args:
        tasks: Training tasks of each environment.
        weights: Share of each environment, relative to the others.
        num_groups: Groups of the whole run.
        seed: The run's.

    Raises:
        ValueError: an environment has no task.
    """
    for name, available in tasks.items():
        if not available:
            raise ValueError(f"environment {name!r} has no training task")
    total_weight = sum(weights[name] for name in tasks)
    counts = dict.fromkeys(tasks, 0)
    orders: dict[tuple[str, int], list[Task]] = {}
    plan: list[PlannedGroup] = []
    for index in range(num_groups):
        name = max(
            tasks, key=lambda each: weights[each] / total_weight * (index + 1) - counts[each]
        )
        round_, place = divmod(counts[name], len(tasks[name]))
        if (name, round_) not in orders:
            order = list(tasks[name])
            random.Random(derive_seed("plan", seed, name, round_)).shuffle(order)
            orders[name, round_] = order
        plan.append(PlannedGroup(environment=name, task=orders[name, round_][place], round=round_))
        counts[name] += 1
    return plan


class GroupBuffer:
    """Collects the groups of coming steps in the background.

    Worked example:

        async with GroupBuffer(collect, plan, groups_per_step=8, max_lag=1) as buffer:
            buffer.release(0)                  # version 0 is published: steps 0 and 1 start
            groups = await buffer.take(0)
            ...                                # the learner makes version 1; step 1 is collected
            buffer.release(1)                  # step 2 starts
    """

    def __init__(
        self,
        collect: Callable[[PlannedGroup], Awaitable[Group]],
        plan: Sequence[PlannedGroup],
        groups_per_step: int,
        max_lag: int,
    ) -> None:
        """Prepare; nothing starts before the first `release`.

        Args:
            collect: Collects one group. It may be called many times at once: whoever is behind it
                bounds the conversations in flight, first come first served.
            plan: All groups of the run; step `s` takes `groups_per_step` of them from
                `s * groups_per_step`.
            groups_per_step: Groups in a batch.
            max_lag: Updates that a group's weights may be behind those it trains.
        """
        self._collect = collect
        self._plan = plan
        self._groups_per_step = groups_per_step
        self._max_lag = max_lag
        self._running: dict[int, list[asyncio.Task[Group]]] = {}
        self._num_released = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Cancel what still runs."""
        running = [task for tasks in self._running.values() for task in tasks]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def release(self, version: int) -> None:
        """Start the groups that may start now that `version` is what the engines hold."""
        last = version + self._max_lag
        while self._num_released <= last:
            step = self._num_released
            start = step * self._groups_per_step
            planned = self._plan[start : start + self._groups_per_step]
            if not planned:
                return
            self._running[step] = [
                asyncio.create_task(self._as_coroutine(group)) for group in planned
            ]
            self._num_released += 1

    async def take(self, step: int) -> list[Group]:
        """Wait for all groups of a step, in the order of the plan.

        Raises:
            LookupError: the step has not been released, or was taken before.
        """
        if step not in self._running:
            raise LookupError(f"step {step} has no groups: {self._num_released} steps released")
        groups = await asyncio.gather(*self._running[step])
        del self._running[step]
        return list(groups)

    async def _as_coroutine(self, group: PlannedGroup) -> Group:
        return await self._collect(group)
