import math

import pytest

from rl.metrics import EVALUATION, STEP, MetricsLog, UndeclaredMetricError, declared, read_metrics


def test_what_is_written_is_read_back_in_order(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.write(EVALUATION, 0, {"rewards/held_out_pass_at_1/retrieval": 0.25})
    log.write(STEP, 1, {"rl/loss": -0.5, "rl/logprob_gap_mean": None})
    assert read_metrics(tmp_path / "metrics.jsonl") == [
        {"kind": "evaluation", "step": 0, "rewards/held_out_pass_at_1/retrieval": 0.25},
        {"kind": "step", "step": 1, "rl/loss": -0.5, "rl/logprob_gap_mean": None},
    ]


def test_an_undeclared_name_raises_and_nothing_is_written(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for name in ("rl/los", "loss", "rewards/pass_rate/", "rewards/pass_rate/a/b", "rl/loss2"):
        with pytest.raises(UndeclaredMetricError, match="not declared"):
            log.write(STEP, 1, {"rl/loss": 0.0, name: 1.0})
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_name_of_the_run_fits_its_pattern():
    assert declared("rewards/pass_rate/my_world:SPEC").name == "rewards/pass_rate/{environment}"
    assert declared("rewards/invalid/sandbox_failed").unit == "episodes"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_raises(tmp_path, value):
    with pytest.raises(ArithmeticError, match=r"rl/loss is .* at step 2"):
        MetricsLog(tmp_path / "metrics.jsonl").write(STEP, 2, {"rl/loss": value})


def test_a_torn_last_line_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    MetricsLog(path).write(STEP, 1, {"rl/loss": 1.0})
    with path.open("a") as file:
        file.write('{"kind": "st')
    assert [line["step"] for line in read_metrics(path)] == [1]
