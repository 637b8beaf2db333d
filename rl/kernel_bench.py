"""`limosa bench kernels`: what the kernels are worth on a CPU, each figure next to its bar.

All figures are ratios taken in one run on one thread, so that they mean the same on any machine.
The kernels for GPUs are compiled ahead of time here; what they cost is measured by `.ci/gpu`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from rich.console import Group, RenderableType
from rich.table import Table

from kernels.aot import KernelReport, summarise
from kernels.benchmarks import host
from kernels.benchmarks.logprob_memory import token_logprobs_memory_share
from kernels.benchmarks.timing import announce
from model.step_benchmark import compare_training_steps
from rollout.config import RolloutConfig
from rollout.engine_environment import engine_environment

ROUNDS = 3
"""Runs timed of everything that is compared."""
STEP_TOKENS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelBench:
    """The figures, named as in the JSON output."""

    chunk_over_recurrent_4096: float
    """How many times faster the delta rule is in chunks, forward and backward of 4,096 tokens."""
    cost_per_token_256k_over_4k: float
    """Seconds per token of the delta rule, forward and backward: 262,144 tokens over 4,096."""
    step_over_transformers_4096: float
    """Tokens per second of a training step of `tiny` over transformers' `kimi_linear`."""
    token_logprobs_memory_share: float
    """Peak memory of token_logprobs over that of the logits, vocabulary 160k, 4,096 tokens."""
    replay_decode_bitwise: bool
    """Whether 4,096 tokens decoded by replay equal the training forward in every bit."""
    engine_batch_invariant: int
    """Longest context, tokens, at which the engine's bits are proven not to depend on the batch,
    and to be those of the training forward."""
    aot: Mapping[str, Mapping[str, int]]
    """Kernels compiled and, of the chosen ones, kernels that spill, per target."""


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure has to reach."""

    text: str
    is_met: Callable[..., bool]


BARS: Mapping[str, Bar] = {
    "chunk_over_recurrent_4096": Bar("at least 20", lambda ratio: ratio >= 20),
    "cost_per_token_256k_over_4k": Bar("at most 1.2", lambda ratio: ratio <= 1.2),
    "step_over_transformers_4096": Bar("at least 4", lambda ratio: ratio >= 4),
    "token_logprobs_memory_share": Bar("below 0.05", lambda share: share < 0.05),
    "replay_decode_bitwise": Bar("True", bool),
    "engine_batch_invariant": Bar("a longer context is better", lambda tokens: tokens > 0),
    "aot": Bar(
        "kernels (that spill): none does",
        lambda aot: all(row["kernels"] > 0 and row["spills"] == 0 for row in aot.values()),
    ),
}
"""The bar of each figure."""


def bench_kernels() -> tuple[KernelBench, Sequence[host.Comparison]]:
    """Measure everything, about eight minutes on one core, with progress on standard error.

    Returns:
        The figures, and each operation against the plain way to compute it.
    """
    torch.set_num_threads(1)
    comparisons = list(host.measure_others(ROUNDS))
    delta = host.measure_delta(ROUNDS)
    announce("token_logprobs: memory at a vocabulary of 160k")
    memory_share = token_logprobs_memory_share()
    announce(f"training step of tiny against transformers' kimi_linear: {STEP_TOKENS} tokens")
    step = compare_training_steps(STEP_TOKENS, ROUNDS)
    announce("the engine's bits, whatever else is in the batch")
    invariant = prove_invariance()
    announce("the Triton kernels, compiled for each target")
    bench = KernelBench(
        chunk_over_recurrent_4096=delta.chunk_over_recurrent,
        cost_per_token_256k_over_4k=delta.long_over_short,
        step_over_transformers_4096=step.ratio,
        token_logprobs_memory_share=memory_share,
        replay_decode_bitwise=host.is_replay_bitwise(),
        engine_batch_invariant=invariant,
        aot=compile_ahead_of_time(),
    )
    return bench, [delta.comparison, *comparisons]


def prove_invariance() -> int:
    """Measure `rollout.invariance.engine_batch_invariant` in a process of its own.

    vLLM reads its variables at import, and numba must not be loaded before an engine starts.

    Raises:
        RuntimeError: the process ended without a figure.
    """
    code = "from rollout.invariance import engine_batch_invariant as f; print('\\n', f())"
    finished = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | engine_environment(RolloutConfig()),
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode != 0:
        last = finished.stderr.strip().splitlines()[-1:]
        raise RuntimeError(f"the engine's invariance could not be measured: {last}")
    return int(finished.stdout.split()[-1])


def compile_ahead_of_time() -> dict[str, dict[str, int]]:
    """Compile every kernel in a process of its own, and count.

    Raises:
        RuntimeError: the process ended without a report.
    """
    command = [sys.executable, "-m", "kernels.aot", "--json"]
    # Exit code 1 says that a kernel spills, which the counts say as well.
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if not finished.stdout:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {finished.returncode}")
    return summarise([KernelReport(**row) for row in json.loads(finished.stdout)])


def render(bench: KernelBench, comparisons: Sequence[host.Comparison]) -> RenderableType:
    """Lay the figures out for a person: with their bars, then operation by operation."""
    figures = Table("figure", "measured", "bar", "", box=None, pad_edge=False)
    for name, value in asdict(bench).items():
        bar = BARS[name]
        figures.add_row(name, _shown(value), bar.text, "ok" if bar.is_met(value) else "MISSED")
    operations = Table(
        "forward and backward", "shape", "ours", "ours is faster than", box=None, pad_edge=False
    )
    for row in comparisons:
        rivals = ", ".join(f"{name} {ratio:.2f} x" for name, ratio in row.speedups.items())
        operations.add_row(row.op, row.shape, f"{row.seconds['ours'] * 1e3:.1f} ms", rivals)
    return Group(figures, "", operations)


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        counts = (f"{target} {row['kernels']} ({row['spills']})" for target, row in value.items())
        return ", ".join(counts)
    return f"{value:.3g}" if isinstance(value, float) else str(value)
