"""What the benchmarks compare computes the same, and what they print is right."""

import math

import pytest
import torch

from kernels.benchmarks import device, host, rivals
from kernels.benchmarks.table import Ceilings, Row, Unit, format_table
from kernels.benchmarks.timing import take_turns, there_and_back
from kernels.token_logprobs import token_logprobs

CEILINGS = Ceilings(matmul=500e12, copy=2e12)


def test_a_row_shows_rate_share_of_the_ceiling_and_rivals():
    row = Row(
        op="delta_attention",
        shape="T 4096",
        work=1e12,
        unit=Unit.FLOPS,
        seconds=4e-3,
        rivals={"fla": 8e-3},
    )
    line = format_table([row], CEILINGS).splitlines()[-1]
    assert line.split(maxsplit=3)[:3] == ["delta_attention", "T", "4096"]
    assert line.split()[3:] == ["4.00", "ms", "250.0", "TFLOP/s", "50%", "fla", "2.00"]


def test_bytes_are_held_against_the_copy():
    row = Row(op="situ_glu", shape="T 1", work=1e6, unit=Unit.BYTES, seconds=1e-6)
    assert "1.0 us" in format_table([row], CEILINGS)
    assert "1000.0 GB/s" in format_table([row], CEILINGS)
    assert "50%" in format_table([row], CEILINGS)


def test_a_row_that_did_not_run_says_why_and_shows_no_figure():
    row = Row(
        op="x", shape="T 1", work=0, unit=Unit.BYTES, seconds=math.nan, remark="the time was up"
    )
    line = format_table([row], CEILINGS).splitlines()[-1]
    assert line.split(maxsplit=6)[-1] == "the time was up"
    assert "nan" not in line


def test_the_ceilings_stand_above_the_table():
    assert "500 TFLOP/s" in format_table([], CEILINGS)
    assert "2000 GB/s" in format_table([], CEILINGS)


def test_a_rival_that_is_not_installed_is_named_once_with_the_reason():
    absent = rivals.Rival("nobody", "no_such_package", "run")
    assert rivals.load(absent) == "nobody is left out: No module named 'no_such_package'"


@pytest.mark.slow
def test_the_rival_from_trl_computes_our_logprobs():
    run = rivals.load(rivals.TRL_LOGPROBS)
    assert not isinstance(run, str), run
    hidden, head, targets = torch.randn(5, 8), torch.randn(7, 8), torch.tensor([0, 6, 3, 3, 1])
    expected, _ = token_logprobs(hidden, head, targets)
    torch.testing.assert_close(rivals.trl_logprobs(run, hidden, head, targets), expected)


def test_a_machine_without_a_gpu_gets_no_table(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device.main() == device.NO_DEVICE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "no CUDA device\n"


@pytest.mark.parametrize(
    "make",
    [
        device.delta_forward,
        device.delta_training,
        device.scores,
        device.conv,
        device.norm,
        device.situ,
        device.residual,
    ],
)
def test_a_workload_of_the_device_table_runs(make, monkeypatch):
    sizes = {"DEVICE": "cpu", "HIDDEN": 256, "VOCABULARY": 50, "MAX_LOGIT_ROWS": 64}
    for name, value in sizes.items():
        monkeypatch.setattr(device, name, value)
    monkeypatch.setattr(device, "_compiled", lambda function: function)
    monkeypatch.setattr(device, "_rival", lambda rival, prepare: {})
    workload = make(32)
    workload.ours()
    assert workload.work > 0
    for run in workload.rivals.values():
        run()


def test_the_plain_forms_on_the_cpu_compute_what_ours_do():
    for op, rivals_ in host._rivals().items():
        ours = there_and_back(rivals_.ours, *rivals_.inputs)()
        plain = there_and_back(rivals_.plain, *rivals_.inputs)()
        torch.testing.assert_close(ours, plain, rtol=1e-3, atol=2e-3, msg=op)


def test_what_is_compared_takes_turns_after_a_warm_up():
    calls = []
    seconds = take_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=2)
    assert calls == ["a", "b", "a", "b", "a", "b"]
    assert set(seconds) == {"a", "b"}
