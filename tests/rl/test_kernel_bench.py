"""The figures of `limosa bench kernels` have their promised names, and bars."""

import subprocess

import pytest
from rich.console import Console

from kernels.benchmarks.host import Comparison
from rl import kernel_bench
from rl.kernel_bench import BARS, KernelBench, compile_ahead_of_time, render

GOOD = {
    "chunk_over_recurrent_4096": 55.0,
    "cost_per_token_256k_over_4k": 1.05,
    "step_over_transformers_4096": 20.0,
    "token_logprobs_memory_share": 0.01,
    "replay_decode_bitwise": True,
    "engine_batch_invariant": 2048,
    "aot": {"sm_90": {"kernels": 9, "spills": 0}},
}
BAD = {
    "chunk_over_recurrent_4096": 19.9,
    "cost_per_token_256k_over_4k": 1.21,
    "step_over_transformers_4096": 3.9,
    "token_logprobs_memory_share": 0.05,
    "replay_decode_bitwise": False,
    "engine_batch_invariant": 0,
    "aot": {"sm_90": {"kernels": 9, "spills": 1}},
}


def shown(bench: KernelBench) -> str:
    console = Console(width=200)
    row = Comparison(op="situ_glu", shape="T = 4096", seconds={"ours": 0.004, "plain": 0.01})
    with console.capture() as capture:
        console.print(render(bench, [row]))
    return capture.get()


def test_every_figure_has_a_bar():
    assert list(BARS) == list(GOOD)


def test_good_figures_are_met_and_operations_follow():
    text = shown(KernelBench(**GOOD))
    assert "MISSED" not in text
    assert "situ_glu" in text
    assert "plain 2.50 x" in text


@pytest.mark.parametrize("name", BAD)
def test_a_figure_below_its_bar_is_called_missed(name):
    text = shown(KernelBench(**GOOD | {name: BAD[name]}))
    missed = [line for line in text.splitlines() if "MISSED" in line]
    assert [line.split()[0] for line in missed] == [name]


def test_a_compiler_that_dies_is_an_error_not_a_table_without_kernels(monkeypatch):
    dead = subprocess.CompletedProcess([], returncode=139, stdout="")
    monkeypatch.setattr(kernel_bench.subprocess, "run", lambda *a, **k: dead)
    with pytest.raises(RuntimeError, match="139"):
        compile_ahead_of_time()
