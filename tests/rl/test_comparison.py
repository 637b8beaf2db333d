"""Comparing variants of a run: what is run, what is read, and who was faster."""

import json

import numpy as np
import pytest

from rl.comparison import Comparison, Curve, compare, find_finished, read_curve
from rl.config_loader import load_config
from rl.metrics import PRETRAINING
from rl.run import Run

CONFIG = """
[run]
name = "short"
steps = 4
[model]
checkpoint = "nowhere"
[environments.retrieval]
[credit]
group_size = 2
groups_per_step = 5
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.toml"
    path.write_text(CONFIG)
    return [path]


def write_run(config, success, num_pretraining=0):
    """Record a finished run whose evaluations, two steps apart, had these pass rates."""
    run = Run.create(config)
    lines = [{"kind": PRETRAINING, "step": step + 1} for step in range(num_pretraining)]
    lines += [
        {"kind": "evaluation", "step": 2 * place, "rewards/held_out_pass_at_1/retrieval": rate}
        for place, rate in enumerate(success)
    ]
    run.metrics_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run.finish({})
    return run


def test_the_way_to_a_level_is_a_straight_line_between_evaluations():
    curve = Curve(
        trajectories=np.array([0.0, 20.0, 40.0]), success=np.array([[0.2, 0.2, 0.8], [0, 0.4, 1]])
    )
    assert curve.mean.tolist() == pytest.approx([0.1, 0.3, 0.9])
    assert curve.trajectories_to(0.6) == pytest.approx(30)
    assert curve.trajectories_to(0.1) == 0
    assert curve.trajectories_to(0.95) is None


def test_a_curve_whose_trajectories_do_not_grow_is_refused():
    with pytest.raises(ValueError, match="does not grow"):
        Curve(trajectories=np.array([0.0, 0.0]), success=np.zeros((1, 2)))
    with pytest.raises(ValueError, match="points but"):
        Curve(trajectories=np.array([0.0, 1.0]), success=np.zeros((1, 3)))


def test_variants_are_measured_against_what_the_first_ends_with():
    slow = Curve(trajectories=np.array([0.0, 100.0]), success=np.array([[0.0, 0.5]]))
    fast = Curve(trajectories=np.array([0.0, 100.0]), success=np.array([[0.0, 1.0]]))
    values = Comparison(curves={"slow": slow, "fast": fast}).to_json()
    assert (values["level"], values["budget"]) == (0.5, 100)
    assert values["variants"]["slow"]["trajectories_to_level"] == 100
    assert values["variants"]["fast"]["trajectories_to_level"] == 50


def test_trajectories_that_taught_the_critic_count(files):
    run = write_run(load_config(files, []), [0.2, 0.4, 0.6], num_pretraining=3)
    curve = read_curve([run.folder])
    assert curve.trajectories.tolist() == [0, 50, 70]
    assert curve.success.tolist() == [[0.2, 0.4, 0.6]]


def test_seeds_that_were_evaluated_at_other_points_are_read_at_all_of_them(files):
    config = load_config(files, [])
    runs = [write_run(config, [0.0, 0.4, 0.8]), write_run(config, [0.0, 0.5, 1.0], 1)]
    curve = read_curve([run.folder for run in runs])
    assert curve.trajectories.tolist() == [0, 20, 30, 40]
    assert curve.success[0].tolist() == pytest.approx([0, 0.4, 0.6, 0.8])
    assert curve.success[1].tolist() == pytest.approx([0, 1 / 3, 0.5, 0.75])


def test_only_what_is_missing_is_run(files):
    made = []

    def run(config, sources):
        made.append((config.run.seed, config.loss.ratio_high, config.rollout.max_lag))
        return write_run(config, [0.0, config.run.seed + config.rollout.max_lag])

    variants = ["rollout.max_lag=0,loss.ratio_high=3", "rollout.max_lag=2"]
    write_run(load_config(files, ["run.seed=1", "rollout.max_lag=2"]), [0.0, 9.0])
    comparison = compare(files, [], variants, [0, 1], run=run)
    assert made == [(0, 3, 0), (0, load_config(files, []).loss.ratio_high, 2), (1, 3, 0)]
    assert comparison.curves[variants[0]].success[:, -1].tolist() == [0, 1]
    assert comparison.curves[variants[1]].success[:, -1].tolist() == [2, 9]
    made.clear()
    compare(files, [], variants, [0, 1], run=run)
    assert made == []


def test_a_run_that_did_not_finish_does_not_count(files):
    config = load_config(files, [])
    assert find_finished(config) is None
    (write_run(config, [0.0]).folder / "summary.json").write_text('{"status": "interrupted"}')
    assert find_finished(config) is None
    folder = write_run(config, [0.0]).folder
    assert find_finished(config) == folder


def test_nothing_to_compare_is_bad_input(files):
    for variants, seeds in (([], [0]), (["run.steps=2"], []), (["run.steps=2"] * 2, [0])):
        with pytest.raises(ValueError, match="once"):
            compare(files, [], variants, seeds)
