"""The bound on the log-decay: refused outside, and what breaks there."""

import subprocess
import sys

import pytest
import torch

from kernels.delta_attention.segments import delta_chunked
from kernels.gate_bound import MIN_LOG_DECAY, check_gate_lower_bound


@pytest.mark.parametrize("bound", [-5.01, 0.0, 1.0, float("nan")])
def test_a_bound_outside_the_range_is_refused_with_the_reason(bound):
    with pytest.raises(ValueError, match=r"outside \[-5, 0\): the decay over 16 tokens"):
        check_gate_lower_bound(bound)


def test_a_bound_in_the_range_is_accepted():
    check_gate_lower_bound(MIN_LOG_DECAY)
    check_gate_lower_bound(-1e-3)


def test_the_reason_is_true():
    ones, bounds = torch.ones(16, 1, 4), torch.tensor([0, 16])

    def output(log_decay):
        return delta_chunked(ones, ones, ones, log_decay * ones, ones[..., 0], bounds)[0]

    assert output(MIN_LOG_DECAY).isfinite().all()
    assert not output(-7.0).isfinite().all()


def test_it_can_be_checked_without_torch():
    script = "import sys, kernels.gate_bound; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
