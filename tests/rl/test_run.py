import json
import logging

import pytest

from rl.config_loader import load_config
from rl.run import Run, RunResult
from rollout.trajectory_store import read_groups


@pytest.fixture
def config(work_folder):
    return load_config("run.toml")


def result_of(run):
    return RunResult(
        folder=run.folder,
        checkpoint=run.checkpoint_folder(1),
        before={"echo": 0.25},
        after={"echo": 0.5},
        steps=1,
        wall_seconds=2.0,
        logprob_gap_mean=1e-6,
        logprob_gap_max=1e-5,
        recomputed_token_ratio=1.0,
        mixed_version_tokens=0,
        invalid={},
    )


def test_a_run_folder_holds_the_input_and_a_configuration_that_loads_again(config, work_folder):
    run = Run.create(config, [work_folder / "run.toml"], ["run.steps=3"])
    assert (run.folder / "input" / "run.toml").read_text() == (work_folder / "run.toml").read_text()
    assert (run.folder / "input" / "overrides.txt").read_text() == "run.steps=3\n"
    assert load_config(run.folder / "config.json") == config
    assert (run.folder / "tokenizer.json").is_file()


def test_two_runs_of_one_second_get_two_folders(config):
    assert Run.create(config).folder != Run.create(config).folder


def test_a_run_folder_that_cannot_be_made_is_one_line(work_folder):
    (work_folder / "file").write_text("")
    for folder in ("file", "file/below"):
        with pytest.raises(ValueError, match=rf"run\.folder = {folder}: cannot be made: "):
            Run.create(load_config("run.toml", [f"run.folder={folder}"]))
    with pytest.raises(ValueError, match="File name too long"):
        Run.create(load_config("run.toml", [f"run.name={'x' * 300}"]))


def test_input_files_of_one_name_are_both_kept(config, work_folder):
    (work_folder / "other").mkdir()
    (work_folder / "other" / "run.toml").write_text("[run]\n")
    run = Run.create(config, [work_folder / "run.toml", work_folder / "other" / "run.toml"])
    assert len(list((run.folder / "input").iterdir())) == 2


def test_a_recorded_step_is_metrics_and_groups(config, build_group):
    run = Run.create(config)
    group = build_group([1.0, None])
    run.record_step(3, {"rl/loss": 0.5}, [group])
    (read,) = read_groups(run.trajectories_folder / "step-0003.jsonl")
    assert [member.id for member in read.trajectories] == ["task#0@0", "task#1@0"]
    assert json.loads(run.metrics_path.read_text())["rl/loss"] == 0.5


def test_a_recorded_evaluation_is_metrics_and_trajectories(config, build_group):
    run = Run.create(config)
    trajectory = build_group([1.0]).trajectories[0]
    run.record_evaluation(0, {"rewards/held_out_pass_at_1/echo": 1.0}, [trajectory])
    (read,) = read_groups(run.trajectories_folder / "evaluation-0000.jsonl")
    assert read.trajectories[0].reward == 1.0


def raise_after_a_log_line(error):
    logging.getLogger("rollout.test").warning("before")
    raise error


def test_a_finished_run_says_its_result(config):
    with Run.create(config) as run:
        run.finish(result_of(run).to_json())
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["run"] == str(run.folder)
    assert summary["after"] == {"echo": 0.5}


@pytest.mark.parametrize(
    ("error", "status"), [(RuntimeError("boom"), "failed"), (KeyboardInterrupt(), "interrupted")]
)
def test_a_run_that_ends_early_says_so_and_logs_the_traceback(config, error, status):
    run = Run.create(config)
    handlers = list(logging.getLogger().handlers)
    with pytest.raises(type(error)), run:
        raise_after_a_log_line(error)
    assert json.loads((run.folder / "summary.json").read_text())["status"] == status
    log = run.log_path.read_text()
    assert "rollout.test: before" in log
    assert "Traceback" in log
    assert logging.getLogger().handlers == handlers


def test_a_folder_is_discarded_only_while_nothing_is_recorded(config, build_group, work_folder):
    run = Run.create(config)
    run.discard()
    assert not (work_folder / "runs").exists()
    run = Run.create(config)
    run.record_step(1, {}, [build_group([1.0])])
    with pytest.raises(ValueError, match="holds records"):
        run.discard()


def test_opening_what_is_no_run_folder_is_one_line(tmp_path):
    with pytest.raises(ValueError, match="is not a run folder"):
        Run.open(tmp_path)
    (tmp_path / "config.json").write_text('{"run": {"nonsense": 1}}')
    with pytest.raises(ValueError, match="does not fit this version"):
        Run.open(tmp_path)


def test_only_written_checkpoints_are_listed(config):
    run = Run.create(config)
    for step in (2, 10):
        run.checkpoint_folder(step).mkdir()
    (run.checkpoint_folder(10) / "config.json").write_text("{}")
    assert list(run.checkpoints()) == [10]
