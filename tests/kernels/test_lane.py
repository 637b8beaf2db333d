"""Which implementation runs is decided by the tensors, and a missing one is said once."""

import importlib.util
import logging
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from kernels import lane


@pytest.fixture(autouse=True)
def _forget():
    lane.has_cpu_lane.cache_clear()
    yield
    lane.has_cpu_lane.cache_clear()


def on(device, dtype):
    """What `lane_of` looks at, for devices that this machine need not have."""
    return SimpleNamespace(device=torch.device(device), dtype=dtype)


@pytest.mark.parametrize(
    ("device", "dtype", "expected"),
    [
        ("cpu", torch.float32, "cpu"),
        ("cpu", torch.float64, "reference"),
        ("cpu", torch.bfloat16, "reference"),
        ("meta", torch.float32, "reference"),
        ("cuda", torch.float32, "triton"),
        ("cuda", torch.bfloat16, "triton"),
        ("cuda", torch.float64, "reference"),
    ],
)
def test_device_and_type_choose_the_lane(device, dtype, expected):
    assert lane.lane_of(on(device, dtype)) == expected


def test_without_numba_the_reference_runs_and_one_warning_says_so(monkeypatch, caplog):
    monkeypatch.setattr(lane, "find_spec", lambda name: None)
    with caplog.at_level(logging.WARNING):
        assert lane.lane_of(torch.zeros(1)) == "reference"
        assert lane.lane_of(torch.zeros(1)) == "reference"
    assert [record.getMessage() for record in caplog.records] == [
        "numba is not installed: the references run instead of compiled CPU loops"
    ]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_ops_on_a_cpu_import_neither_triton_nor_numba_with_the_module():
    script = (
        "import sys, kernels.attention_residual, kernels.gated_norm, kernels.short_conv,"
        " kernels.situ_glu;"
        "heavy = {'triton', 'numba'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
