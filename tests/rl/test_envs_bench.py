"""`limosa bench envs` gives the figures and counts that it promises; what fails is counted."""

import dataclasses
import json
import subprocess
import sys
import time

import pytest
from rich.console import Console

from envs.sandboxes.start_times import StartTimes
from rewards.reward import Blame, Invalid
from rl import envs_bench
from rl.cli import main
from rl.envs_bench import EnvsBenchPlan, Latency, bench_envs, render
from rl.memory_watch import MemoryWatch, process_tree

PLAN = EnvsBenchPlan(
    environments=("code_tests", "retrieval", "encyclopedia"),
    num_episodes=4,
    num_starts=1,
    num_queries=20,
    num_parallel=12,
)


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch, tmp_path):
    """A machine with an empty cache folder and no dictionary, whose sandboxes start at once."""
    monkeypatch.setenv("LIMOSA_CACHE", str(tmp_path))
    monkeypatch.setattr("envs.corpora.foldoc.SYSTEM_FOLDER", tmp_path)
    times = StartTimes(backend="bubblewrap", cold_ms=[40.0], pooled_ms=[1.0], exec_ms=[9.0])

    async def measure(repeats):
        assert repeats == PLAN.num_starts
        return times

    monkeypatch.setattr(envs_bench, "measure_start", measure)


def test_episodes_graders_search_and_a_crowd_are_measured_and_what_is_not_here_is_named():
    bench = bench_envs(PLAN)
    assert set(bench.episodes_per_second_per_core) == {"code_tests", "retrieval"}
    assert bench.failures == {"code_tests": 0, "retrieval": 0}
    assert set(bench.grader) == {"hidden_tests", "cited_answer"}
    assert "foldoc" in bench.skipped["encyclopedia"].lower()
    assert (bench.search_corpus, bench.search_documents) == ("elements", 575)
    assert (bench.parallel_episodes, bench.parallel_failures) == (12, 0)
    assert bench.parallel_peak_mib > 10
    json.dumps(dataclasses.asdict(bench))

    console = Console(width=160)
    with console.capture() as capture:
        console.print(render(bench))
    for told in ("episodes/s per core", "0 of 4", "p99, ms", "12 episodes at once", "MiB"):
        assert told in capture.get()


def test_an_episode_whose_grader_fails_is_counted(monkeypatch):
    async def fail(episode):
        return Invalid(reason="sandbox_failed", blame=Blame.INFRASTRUCTURE)

    monkeypatch.setattr(envs_bench, "load_grader", lambda name: fail)
    bench = bench_envs(dataclasses.replace(PLAN, environments=("retrieval",)))
    assert bench.failures == {"retrieval": 4}
    assert bench.parallel_failures == 12


def test_a_machine_on_which_nothing_can_be_played_is_one_line():
    with pytest.raises(ValueError, match="no environment can be played here"):
        bench_envs(dataclasses.replace(PLAN, environments=("encyclopedia",)))


def test_the_help_names_every_key(capsys):
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    told = capsys.readouterr().out
    for kind in (envs_bench.EnvsBench, Latency):
        assert [item.name for item in dataclasses.fields(kind) if item.name not in told] == []


def test_a_configuration_is_refused(capsys):
    assert main(["bench", "envs", "configs/quickstart.toml"]) == 2
    assert "bench envs takes no configuration" in capsys.readouterr().err


def test_memory_of_what_was_started_is_seen():
    with MemoryWatch() as memory:
        code = "x = bytearray(300 << 20); print(len(x), flush=True); input()"
        child = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in process_tree()
        time.sleep(0.3)
        child.communicate(b"\n")
    assert memory.peak_bytes > 300 << 20
