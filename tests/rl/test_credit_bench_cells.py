"""Cells: learned, kept, resumed, reported and drawn."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from rl.cli import parse_command
from rl.credit_bench import bench, cells, critics
from rl.credit_bench.cells import Cell, measure_cells
from rl.credit_bench.environments import build_environment
from rl.credit_bench.estimators import ESTIMATORS
from rl.credit_bench.learning import CRITIC_MEMORY, EPISODES_PER_STEP, learn
from rl.credit_bench.plot import draw
from rl.credit_bench.report import COLUMNS, curves_of, to_json

COMPARE = Cell(
    environment="KeyDoor",
    horizon=10,
    estimators=("rloo", "tb_gae"),
    is_learning=False,
    repetitions=2,
)
LEARN = Cell(
    environment="KeyDoor", horizon=10, estimators=("tb_gae",), is_learning=True, repetitions=3
)


@pytest.fixture(autouse=True)
def one_step_length(monkeypatch):
    """The longest is the best everywhere: the others only take time."""
    monkeypatch.setattr("rl.credit_bench.learning.STEP_LENGTHS", (0.7,))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Figures of KeyDoor over three horizons."""
    wanted = [replace(COMPARE, horizon=horizon) for horizon in (10, 100, 200)]
    return measure_cells([*wanted, LEARN], tmp_path_factory.mktemp("bench"), workers=1)


def test_a_window_learns_faster_than_a_broadcast_outcome():
    process = build_environment("KeyDoor", 150)
    needed = {
        name: learn(process, ESTIMATORS[name], seeds=3, seed=0).trajectories_to_90
        for name in ("rloo", "tb_gae", "tb_gae_mix", "lag_weighted")
    }
    assert 1000 < needed["rloo"] < 2500
    assert needed["tb_gae"] < 0.5 * needed["rloo"]
    assert needed["tb_gae_mix"] < 0.6 * needed["rloo"]
    assert needed["lag_weighted"] < 0.5 * needed["rloo"]


def test_where_the_critic_sees_late_a_short_window_fails_and_the_mixes_do_not(monkeypatch):
    monkeypatch.setattr("rl.credit_bench.learning.MAX_STEPS", 40)
    process = build_environment("DelayedReveal(60)", 100)
    needed = {
        name: learn(process, ESTIMATORS[name], seeds=3, seed=0).trajectories_to_90
        for name in ("lambda_0", "rloo", "tb_gae_mix", "lag_weighted")
    }
    assert needed["lambda_0"] is None
    assert needed["tb_gae_mix"] < 1.5 * needed["rloo"]
    assert needed["lag_weighted"] < 1.5 * needed["rloo"]


def test_a_policy_learns_more_slowly_from_what_another_one_does():
    needed = [
        learn(build_environment(name, 30), ESTIMATORS["tb_gae"], seeds=5, seed=0)
        for name in ("KeyDoor", "Stale(0)", "Stale(2)")
    ]
    own, same, other = (result.trajectories_to_90 for result in needed)
    assert own == same
    assert other > 1.2 * own


def test_a_learning_critic_knows_the_batches_before_the_present_one(monkeypatch):
    known = []
    fit = critics.fit_linear

    def watched(process, evidence):
        known.append(float(evidence.counts.sum()))
        return fit(process, evidence)

    monkeypatch.setattr(critics, "fit_linear", watched)
    monkeypatch.setattr("rl.credit_bench.learning.MAX_STEPS", 3)
    learn(build_environment("KeyDoor", 10), ESTIMATORS["tb_gae"], seeds=1, seed=0)
    turns = EPISODES_PER_STEP * 10
    assert known == pytest.approx([turns, turns * (1 + CRITIC_MEMORY)])  # at steps 2 and 3


def test_turns_whose_ratio_is_out_of_bounds_teach_nothing(monkeypatch):
    monkeypatch.setattr("rl.credit_bench.learning.MAX_STEPS", 30)
    process = build_environment("KeyDoor", 10)
    assert learn(process, ESTIMATORS["rloo"], seeds=1, seed=0).trajectories_to_90
    monkeypatch.setattr("rl.credit_bench.learning.ratios", lambda *_: 0.0)
    assert learn(process, ESTIMATORS["rloo"], seeds=1, seed=0).trajectories_to_90 is None


def test_a_policy_learns_with_no_critic_but_the_linear_one():
    with pytest.raises(ValueError, match="linear critic or none"):
        learn(build_environment("KeyDoor", 10), ESTIMATORS["tb_gae/exact"], seeds=1, seed=0)


def test_finished_cells_are_not_computed_again(tmp_path, monkeypatch):
    first = measure_cells([COMPARE], tmp_path, workers=1)
    calls = []

    def counted(cell):
        calls.append(cell)
        return {"tb_gae": {"trajectories_to_90": 64.0}}

    monkeypatch.setattr(cells, "measure_cell", counted)
    both = measure_cells([COMPARE, LEARN], tmp_path, workers=1)
    assert calls == [LEARN]
    assert both[COMPARE] == first[COMPARE]


def test_an_interrupted_bench_says_so_in_one_line_and_goes_on_where_it_was(tmp_path):
    program = """
import signal, sys
from dataclasses import replace
from rl import cli
from rl.credit_bench import bench, cells
cell = cells.Cell(
    environment="KeyDoor", horizon=10, estimators=("rloo",), is_learning=False, repetitions=1
)
bench.full_cells = lambda: [replace(cell, horizon=horizon) for horizon in range(10, 60)]
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
sys.exit(cli.main(["bench", "credit", "--full", "--json", "--out", sys.argv[1]]))
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as first:
        said = []
        for line in first.stderr:
            said.append(line)
            if line.startswith("4 of 50: "):
                break
        os.killpg(first.pid, signal.SIGINT)  # a terminal sends it to the whole group
        rest = first.stderr.read().splitlines()
    assert first.returncode == 130
    assert said[0].startswith("50 cells, 0 of them finished before, in ")
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*.json")}
    assert 4 <= len(kept) < 50
    assert rest[-1].startswith(f"limosa: interrupted; {len(kept)} of 50 cells are kept in ")
    assert rest[-1].endswith("; the same command goes on from there")
    assert all(re.match(r"\d+ of 50: ", line) for line in rest[:-1])

    second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert f"50 cells, {len(kept)} of them finished before, in " in second.stderr
    assert len(second.stderr.splitlines()) == 1 + 50 - len(kept)
    assert set(json.loads(second.stdout)["KeyDoor"]["rloo"]["corr"]) == set(map(str, range(10, 60)))
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_figures_of_other_code_are_not_taken(tmp_path, monkeypatch):
    measure_cells([LEARN], tmp_path, workers=1)
    monkeypatch.setattr(cells, "fingerprint", lambda: "0" * 12)
    monkeypatch.setattr(cells, "measure_cell", lambda cell: {"tb_gae": {}})
    assert measure_cells([LEARN], tmp_path, workers=1) == {LEARN: {"tb_gae": {}}}


def test_processes_find_what_one_process_finds(tmp_path):
    wanted = [COMPARE, replace(COMPARE, horizon=12)]
    alone = measure_cells(wanted, tmp_path / "one", workers=1)
    assert measure_cells(wanted, tmp_path / "two", workers=2) == alone


def test_cells_that_differ_have_files_of_their_own():
    wanted = cells.full_cells()
    assert len({cell.file_name for cell in wanted}) == len(wanted)
    assert set(cells.default_cells()[0].estimators) >= {
        "rloo",
        "critic_lambda_1",
        "tb_gae",
        "tb_gae_mix",
        "equal_mix",
        "gigpo",
    }
    assert {cell.environment for cell in cells.default_cells()} == {
        "KeyDoor",
        "Ladder",
        "DelayedReveal",
    }


def test_the_help_names_every_key_and_counts_the_cells(capsys):
    with pytest.raises(SystemExit):
        parse_command(["bench", "--help"])
    told = capsys.readouterr().out
    keys = (*COLUMNS, "corr_law", "slope_log_h", "slope_law")
    assert [key for key in keys if key not in told] == []
    for wanted in (cells.default_cells(), cells.full_cells()):
        assert f"{len(wanted)} cells" in told


def test_the_json_has_figures_by_horizon_and_slopes(results):
    values = json.loads(json.dumps(to_json(curves_of(results)), allow_nan=False))
    assert set(values) == {"KeyDoor"}
    found = values["KeyDoor"]["tb_gae"]
    assert set(found["corr"]) == {"10", "100", "200"}
    assert found["trajectories_to_90"].keys() == {"10"}
    assert -0.1 < found["slope_log_h"] < 0.1
    assert values["KeyDoor"]["rloo"]["slope_law"] == pytest.approx(-0.5)
    for measure in ("corr_within", "mse", "bias", "variance", "pivot_auroc", "cosine"):
        assert set(found[measure]) == {"10", "100", "200"}


def test_the_plot_has_a_line_for_each_estimator_and_measure(results):
    picture = ET.fromstring(draw(curves_of(results)))
    lines = picture.findall("{http://www.w3.org/2000/svg}polyline")
    drawn = [line for line in lines if line.get("points")]
    assert (
        len(drawn) == 2 * 7 - 1 + 1
    )  # rloo has none within episodes; of trajectories there is one
    numbers = [float(x) for line in drawn for x in line.get("points").replace(",", " ").split()]
    assert max(numbers) < float(picture.get("width"))
    assert min(numbers) > 0


def test_the_bench_leaves_tables_and_a_plot(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "default_cells", lambda: [COMPARE, LEARN])
    found = bench.bench_credit(tmp_path)
    assert found.plot.read_text().startswith("<svg")
    assert found.values["KeyDoor"]["tb_gae"]["trajectories_to_90"]
