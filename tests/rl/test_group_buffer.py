"""The group buffer: the lag bound, whole batches, and a plan that depends on the seed alone."""

import asyncio
from collections import Counter

import pytest

from envs.task import Task
from rl.group_buffer import GroupBuffer, PlannedGroup, plan_groups


def make_tasks(environment, count):
    return [
        Task(id=f"{environment}/{index}", environment=environment, grader="toy")
        for index in range(count)
    ]


PLAN = [PlannedGroup(environment="toy", task=task, round=0) for task in make_tasks("toy", 8)]


class FakeCollector:
    """Remembers what it was asked for; each group ends when the test says so."""

    def __init__(self, build_group):
        self.started = []
        self.cancelled = 0
        self._build_group = build_group
        self._gates = {}

    async def collect(self, planned):
        self.started.append(planned.task.id)
        gate = self._gates.setdefault(planned.task.id, asyncio.Event())
        try:
            await gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self._build_group([1.0], name=planned.task.id)

    def finish(self, *indices):
        for index in indices:
            self._gates.setdefault(f"toy/{index}", asyncio.Event()).set()


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("max_lag", "started_per_version"), [(0, [2, 4, 6, 8]), (1, [4, 6, 8, 8]), (2, [6, 8, 8, 8])]
)
async def test_a_group_starts_only_within_the_lag_bound(build_group, max_lag, started_per_version):
    fake = FakeCollector(build_group)
    async with GroupBuffer(fake.collect, PLAN, groups_per_step=2, max_lag=max_lag) as buffer:
        assert fake.started == []
        for version, expected in enumerate(started_per_version):
            buffer.release(version)
            await settle()
            assert len(fake.started) == expected


async def test_a_batch_is_the_groups_started_for_it_however_slow(build_group):
    fake = FakeCollector(build_group)
    async with GroupBuffer(fake.collect, PLAN, groups_per_step=2, max_lag=1) as buffer:
        buffer.release(0)
        taking = asyncio.create_task(buffer.take(0))
        fake.finish(1, 2, 3)  # all but the first: the batch of step 1 is complete, step 0's is not
        await settle()
        assert not taking.done()
        fake.finish(0)
        assert [group.id for group in await taking] == ["toy/0", "toy/1"]
        assert [group.id for group in await buffer.take(1)] == ["toy/2", "toy/3"]


async def test_a_step_that_was_not_released_cannot_be_taken(build_group):
    fake = FakeCollector(build_group)
    async with GroupBuffer(fake.collect, PLAN, groups_per_step=2, max_lag=0) as buffer:
        with pytest.raises(LookupError, match="step 0"):
            await buffer.take(0)


async def test_leaving_the_buffer_cancels_what_still_runs(build_group):
    fake = FakeCollector(build_group)
    async with GroupBuffer(fake.collect, PLAN, groups_per_step=2, max_lag=1) as buffer:
        buffer.release(0)
        await settle()
    assert fake.cancelled == 4


async def test_an_error_of_the_collector_reaches_the_loop():
    async def collect(_planned):
        raise RuntimeError("the engine died")

    async with GroupBuffer(collect, PLAN, groups_per_step=2, max_lag=0) as buffer:
        buffer.release(0)
        with pytest.raises(RuntimeError, match="the engine died"):
            await buffer.take(0)


def test_a_plan_holds_the_environments_in_proportion_at_every_stretch():
    tasks = {"code": make_tasks("code", 5), "search": make_tasks("search", 50)}
    plan = plan_groups(tasks, {"code": 1.0, "search": 3.0}, num_groups=40, seed=0)
    for start in range(0, 40, 8):
        counts = Counter(group.task.environment for group in plan[start : start + 8])
        assert counts == {"code": 2, "search": 6}


def test_all_tasks_come_before_any_comes_again_and_rounds_tell_them_apart():
    plan = plan_groups({"code": make_tasks("code", 5)}, {"code": 1.0}, num_groups=12, seed=0)
    pairs = [(group.task.id, group.round) for group in plan]
    assert len(set(pairs)) == 12
    assert {task for task, round_ in pairs[:5]} == {f"code/{index}" for index in range(5)}
    assert [round_ for _, round_ in pairs] == [0] * 5 + [1] * 5 + [2] * 2


def test_a_plan_depends_on_the_seed_alone():
    tasks = {"code": make_tasks("code", 30)}
    plans = [plan_groups(tasks, {"code": 1.0}, 20, seed) for seed in (0, 0, 1)]
    assert plans[0] == plans[1]
    assert plans[0] != plans[2]


def test_an_environment_without_tasks_is_refused():
    with pytest.raises(ValueError, match="'code' has no training task"):
        plan_groups({"code": []}, {"code": 1.0}, 1, 0)
