"""Real engines in real Ray actors: one start for what can share it, one to be interrupted."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from envs.config import EnvironmentConfig
from envs.environment import Split
from envs.task import Task
from envs.task_sets import load_tasks
from rollout.collector import Collector
from rollout.config import RolloutConfig
from rollout.engine import EngineError
from rollout.group_statistics import summarize
from rollout.input_error import InputError
from rollout.placement import descendants
from rollout.weight_update import write_weights

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.slow]

ENVIRONMENTS = {"code_tests": EnvironmentConfig(), "retrieval": EnvironmentConfig()}
CONFIG = RolloutConfig(max_concurrent_episodes=16)

BROKEN_WORLD = """
from envs.environment import EnvironmentSpec

class Broken:
    def reset(self) -> str:
        raise RuntimeError("no world today")

async def grade(episode):
    raise AssertionError("a broken episode is never graded")

SPEC = EnvironmentSpec(name="broken", environment=Broken, tasks=lambda split: [])
"""


async def test_a_collector_collects_publishes_scores_and_leaves_no_process(
    checkpoint, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("broken_world.py").write_text(BROKEN_WORLD)
    environments = ENVIRONMENTS | {"broken": EnvironmentConfig(use="broken_world:SPEC")}
    start = Collector.start(checkpoint, environments, CONFIG, seed=0, log_folder=tmp_path / "logs")
    before = descendants()  # of other tests: a compiler's pool, a resource tracker
    async with start as collector:
        await check_collecting(collector)
        await check_publishing(collector, checkpoint)
        await check_failures(collector)
        processes = set(descendants()) - set(before)
        assert len(processes) > 3
        started = time.monotonic()
    assert time.monotonic() - started < 10
    assert not [process for process in processes if process.is_running()]
    assert (tmp_path / "logs" / "actor-0.log").is_file()
    assert (tmp_path / "logs" / "engine-0.log").is_file()


async def check_collecting(collector):
    code, questions = (
        load_tasks(name, ENVIRONMENTS[name], Split.HELD_OUT) for name in ENVIRONMENTS
    )
    groups = await asyncio.gather(
        *(collector.collect_group(task, 4, 0) for task in (code[0], code[1], questions[0]))
    )
    assert [group.task.id for group in groups] == [code[0].id, code[1].id, questions[0].id]
    statistics = summarize(groups)
    assert statistics.num_trajectories == 12
    assert statistics.invalid == {}
    assert statistics.recomputed_token_ratio <= 1.02
    again = await collector.collect_group(code[0], 4, 0)
    first, second = groups[0].trajectories[0], again.trajectories[0]
    np.testing.assert_array_equal(first.segments[0].token_ids, second.segments[0].token_ids)
    segment = first.segments[0]
    scores = await collector.score(segment.token_ids.tolist())
    np.testing.assert_allclose(
        scores[segment.loss_mask], segment.behavior_logprobs[segment.loss_mask], atol=1e-4
    )
    evaluated = await collector.evaluate([*questions[:3], code[0]], temperature=1.0)
    assert [trajectory.episode.task for trajectory in evaluated] == [*questions[:3], code[0]]


async def check_publishing(collector, checkpoint):
    from model.checkpoint import load

    manifest = write_weights(load(checkpoint).state_dict(), version=1)
    try:
        receipts = await collector.publish(manifest)
    finally:
        manifest.remove()
    assert [receipt.checksum for receipt in receipts] == [manifest.checksum]
    assert len(receipts) == collector.num_engines == 1
    task = load_tasks("retrieval", ENVIRONMENTS["retrieval"], Split.HELD_OUT)[0]
    group = await collector.collect_group(task, 2, 1)
    assert {trajectory.first_version for trajectory in group.trajectories} == {1}


async def check_failures(collector):
    task = Task(id="b/1", environment="broken_world:SPEC", grader="broken_world:grade")
    group = await collector.collect_group(task, 2, 0)
    assert [member.invalid.reason for member in group.trajectories] == ["environment_failed"] * 2
    assert group.trajectories[0].episode.error.endswith("RuntimeError: no world today")
    unknown = Task(id="x/1", environment="nowhere", grader="g")
    with pytest.raises(InputError, match=r"^task x/1: environment 'nowhere' is none of this run's"):
        await collector.collect_group(unknown, 2, 0)


INTERRUPTED = """
import asyncio, sys
from pathlib import Path
from envs.config import EnvironmentConfig
from envs.environment import Split
from envs.task_sets import load_tasks
from rollout.collector import Collector
from rollout.config import RolloutConfig

async def main():
    environments = {"retrieval": EnvironmentConfig()}
    tasks = load_tasks("retrieval", environments["retrieval"], Split.TRAIN)
    logs, checkpoint = Path(sys.argv[1]), Path(sys.argv[2])
    async with Collector.start(
        checkpoint, environments, RolloutConfig(), seed=0, log_folder=logs
    ) as collector:
        print("up", flush=True)
        await asyncio.gather(*(collector.collect_group(task, 8, 0) for task in tasks))

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_ctrl_c_in_the_middle_of_collection_leaves_no_process(checkpoint, tmp_path):
    (tmp_path / "job.py").write_text(INTERRUPTED)
    command = [sys.executable, str(tmp_path / "job.py"), str(tmp_path / "logs"), str(checkpoint)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "up\n"
        time.sleep(1.0)
        processes = descendants(job.pid)
        names = [" ".join(process.cmdline()) for process in processes]
        assert any("raylet" in name for name in names)
        os.kill(job.pid, signal.SIGINT)
        started = time.monotonic()
        job.wait(30)
        seconds = time.monotonic() - started
    _, alive = psutil.wait_procs(processes, timeout=max(0.0, 10 - seconds))
    left_over = [process.pid for process in alive]
    for process in alive:
        process.kill()
    assert not left_over
    assert seconds < 10


async def test_an_engine_that_cannot_start_is_one_clear_line_and_leaves_no_process(tmp_path):
    before = {process.pid for process in descendants()}
    with pytest.raises(InputError, match=r"tokenizer\.json: no such file"):
        async with Collector.start(
            tmp_path, ENVIRONMENTS, CONFIG, seed=0, log_folder=tmp_path / "logs"
        ):
            pytest.fail("an engine without weights has started")
    assert {process.pid for process in descendants()} <= before
    assert issubclass(EngineError, RuntimeError)
