"""Loops are compiled once and kept; where they cannot be kept, that is said."""

import os
import subprocess
import sys

import numpy as np
import pytest

from kernels.compiled import compiled

ADVANCE = """
import torch
from kernels.delta_attention.cached import CachedSequences, cached_delta_attention
from kernels.delta_attention import cpu

x = torch.rand(3, 2, 4)
one = torch.tensor([0])
sequences = CachedSequences(one, torch.tensor([0, 3]), one)
cached_delta_attention(x, x, x, -x, x.mean(-1), torch.zeros(1, 2, 4, 4), sequences)
print(sum(cpu._advance.stats.cache_hits.values()))
"""


def test_the_next_process_finds_the_machine_code(tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    hits = [
        subprocess.run(
            [sys.executable, "-c", ADVANCE],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for _ in range(2)
    ]
    assert hits == ["0", "1"]


def test_a_loop_that_cannot_be_kept_runs_all_the_same_and_says_so(caplog):
    names = {}
    exec("def double(x):\n    for i in range(len(x)):\n        x[i] *= 2", names)
    double = compiled(names["double"])
    x = np.arange(3.0)
    double(x)
    assert x.tolist() == [0.0, 2.0, 4.0]
    assert "double is compiled in each process anew" in caplog.text


def test_a_sum_keeps_the_order_in_which_it_is_written():
    @compiled
    def total(x):
        result = np.float32(0.0)
        for i in range(len(x)):
            result += x[i]
        return result

    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    expected = np.float32(0.0)
    for value in x:
        expected += value
    assert total(x) == pytest.approx(expected, abs=0)
