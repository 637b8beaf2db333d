import json
import os
import signal
import subprocess
import sys

import pytest

from rl import job, verbs
from rl.cli import main, parse_command
from rl.config_loader import load_config
from rl.run import Run, RunResult
from rl.verbs import Report
from rollout.engine import EngineError
from rollout.input_error import InputError


def outcome_of(capsys, *arguments):
    """Exit code, standard output and standard error of a command."""
    capsys.readouterr()
    try:
        code = main(list(arguments))
    except SystemExit as ended:
        code = ended.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def bad_input(capsys, *arguments):
    """The one line that a bad input gives."""
    code, out, err = outcome_of(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("limosa")
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (["run.toml", "run.stepz=3"], "did you mean run.steps?"),
        (["run.toml", "run.steps=abc"], "must be a whole number"),
        (["absent.toml"], "no such file"),
        (["broken.toml"], "broken.toml:1: not TOML"),
        (["run.toml", "model.checkpoint=nowhere"], "no such checkpoint folder"),
        (["run.toml", "rollout.max_tokens=8", "rollout.max_sampled_tokens=4"], "context too small"),
        (["run.toml", "environments.echo.tasks=tasks.jsonl"], "tasks.jsonl:2: not valid JSON"),
        (["run.toml", "environments.echo.tasks=bad_world.jsonl"], "the world is down"),
        (["run.toml", "environments.echo.use=ecko"], "no environment 'ecko'"),
        (["run.toml", "rollout.kv_cache_mib=100000000"], "lower rollout.kv_cache_mib"),
        (["run.toml", "rollout.ray_address=127.0.0.1:1"], "does not answer"),
        (["run.toml", "rollout.ray_address=nonsense"], "none of local, auto, host:port"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_run_folder(capsys, work_folder, inputs, said):
    (work_folder / "broken.toml").write_text("[run\n")
    task = {"id": "a", "environment": "echo_world:SPEC", "grader": "echo_world:grade"}
    good_line = json.dumps(task | {"data": {"word": "a"}})
    (work_folder / "tasks.jsonl").write_text(good_line + "\n{\n")
    lines = [json.dumps(task | {"id": f"t{i}", "data": {"word": "broken"}}) for i in range(40)]
    (work_folder / "bad_world.jsonl").write_text("\n".join(lines))
    assert said in bad_input(capsys, "train", *inputs)
    assert not (work_folder / "runs").exists()


@pytest.mark.parametrize("verb", ["collect", "eval"])
def test_other_verbs_check_their_input_as_well(capsys, work_folder, verb):
    assert "no such checkpoint" in bad_input(capsys, verb, "run.toml", "model.checkpoint=nowhere")
    assert not (work_folder / "runs").exists()


@pytest.mark.parametrize(
    "arguments", [["train", "run.toml"], ["collect", "run.toml"], ["eval", "run.toml"]]
)
def test_weights_that_are_not_the_models_are_found_before_an_engine_starts(
    capsys, work_folder, monkeypatch, arguments
):
    def connect(address):
        raise AssertionError

    monkeypatch.setattr("rollout.collector.connect", connect)
    line = bad_input(capsys, *arguments)  # the checkpoint of these tests has few tensors
    assert "checkpoint checkpoint: it lacks lm_head.weight; " in line
    assert not (work_folder / "runs").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["trian"],
        ["train"],
        ["train", "run.toml", "--nonsense"],
        ["collect", "run.toml", "--groups", "0"],
        ["show", "nowhere"],
        ["export", "nowhere", "out"],
        ["bench", "nothing"],
        ["eval", "run.toml", "--checkpoint", "nowhere"],
    ],
)
def test_bad_arguments_are_one_line(capsys, work_folder, arguments):
    bad_input(capsys, *arguments)


def test_a_number_that_is_none_is_told_in_words(capsys, work_folder):
    line = bad_input(capsys, "collect", "run.toml", "--groups", "many")
    assert "argument --groups: 'many' is no whole number" in line


def test_overrides_may_stand_after_options(work_folder):
    arguments = parse_command(["collect", "run.toml", "--groups", "4", "run.folder=X", "--json"])
    assert arguments.inputs == ["run.toml", "run.folder=X"]
    assert (arguments.groups, arguments.json) == (4, True)


@pytest.mark.parametrize("rest", [["x=1", "--nonsense"], ["--nonsense=1"]])
def test_an_unknown_option_is_no_override(capsys, work_folder, rest):
    line = bad_input(capsys, "collect", "run.toml", "--groups", "4", *rest)
    assert "unrecognized arguments: " in line
    assert "unrecognized arguments: x=1" in bad_input(capsys, "doctor", "x=1")


def test_train_prints_one_json_object_last_whatever_libraries_print(
    capfd, work_folder, monkeypatch
):
    def train(config, sources):
        sys.stdout.write("a library speaks\n")
        subprocess.run(["echo", "a child speaks"], check=True)
        return RunResult(
            folder=work_folder / "runs" / "x",
            checkpoint=work_folder / "runs" / "x" / "checkpoints" / "step-0001",
            before={"echo": 0.25},
            after={"echo": 0.5},
            steps=config.run.steps,
            wall_seconds=2.0,
            logprob_gap_mean=1e-6,
            logprob_gap_max=1e-5,
            recomputed_token_ratio=1.0,
            mixed_version_tokens=0,
            invalid={"sandbox_failed": 1},
        )

    monkeypatch.setattr(job, "train", train)
    assert main(["train", "run.toml", "run.steps=3", "--json"]) == 0
    captured = capfd.readouterr()
    values = json.loads(captured.out)
    assert set(values) >= {
        "run",
        "before",
        "after",
        "steps",
        "wall_seconds",
        "logprob_gap_mean",
        "logprob_gap_max",
        "recomputed_token_ratio",
        "mixed_version_tokens",
        "invalid",
    }
    assert values["steps"] == 3
    assert "a library speaks" in captured.err
    assert "a child speaks" in captured.err
    assert main(["train", "run.toml"]) == 0
    assert "0.500" in capfd.readouterr().out


def test_a_failure_of_the_system_names_the_log_that_has_the_traceback(capsys, work_folder):
    config = load_config("run.toml")

    def fail(arguments):
        with job._open_job(config, None):
            raise RuntimeError("the engine died")

    code, out, err = with_verb(capsys, "doctor", fail)
    assert (code, out) == (1, "")
    (folder,) = (work_folder / "runs").iterdir()
    assert f"limosa: RuntimeError: the engine died; traceback in runs/{folder.name}/log.txt" in err
    assert "Traceback" not in err
    assert "Traceback" in (folder / "log.txt").read_text()


def test_an_input_error_while_engines_start_takes_the_run_folder_away(capsys, work_folder):
    config = load_config("run.toml")

    def fail(arguments):
        with job._open_job(config, None):
            load_config("absent.toml")
        raise AssertionError

    code, _, err = with_verb(capsys, "doctor", fail)
    assert (code, err) == (2, "limosa: absent.toml: no such file (did you mean run.toml?)\n")
    assert not (work_folder / "runs").exists()


def test_a_value_error_of_a_library_is_a_failure_of_the_system(capsys, work_folder):
    code, _, err = with_verb(capsys, "doctor", lambda arguments: json.loads("{"))
    assert code == 1
    assert "Traceback" in err


@pytest.mark.parametrize(
    ("error", "expected"), [(InputError("too long"), 2), (EngineError("ValueError: too long"), 1)]
)
def test_what_an_actor_raises_is_told_by_its_type(capsys, work_folder, error, expected):
    def fail(arguments):
        with job._open_job(load_config("run.toml"), None):
            json.loads("{}", object_hook=lambda _: _raise(error))  # raised in no code of ours

    code, _, err = with_verb(capsys, "doctor", fail)
    assert code == expected
    assert "too long" in err
    assert ("traceback in runs/" in err) == (expected == 1)


def _raise(error):
    raise error


def test_ctrl_c_is_exit_code_130_and_keeps_the_folder(capsys, work_folder):
    config = load_config("run.toml")

    def interrupt(arguments):
        with job._open_job(config, None):
            raise KeyboardInterrupt

    code, _, err = with_verb(capsys, "doctor", interrupt)
    assert code == 130
    (folder,) = (work_folder / "runs").iterdir()
    assert err.splitlines()[-1] == (
        f"limosa: interrupted; what was recorded is in runs/{folder.name}"
    )


def test_sigterm_while_a_run_begins_leaves_a_folder_that_says_so(capsys, work_folder, monkeypatch):
    create = Run.create

    def create_and_be_told_to_end(*arguments):
        run = create(*arguments)
        os.kill(os.getpid(), signal.SIGTERM)
        return run

    def begin(arguments):
        with job._open_job(load_config("run.toml"), None):
            raise AssertionError

    monkeypatch.setattr(Run, "create", create_and_be_told_to_end)
    code, _, err = with_verb(capsys, "doctor", begin)
    (folder,) = (work_folder / "runs").iterdir()
    assert code == 130
    assert f"what was recorded is in runs/{folder.name}" in err
    assert json.loads((folder / "summary.json").read_text()) == {"status": "interrupted"}


def with_verb(capsys, name, run):
    """Run a verb whose work is replaced."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verbs, "VERBS", verbs.VERBS)
        patch.setitem(verbs.VERBS, name, run)  # pyright: ignore[reportArgumentType]
        return outcome_of(capsys, name)


def test_a_report_sets_the_exit_code(capsys, work_folder):
    report = Report(values={"a": 1}, text="text", exit_code=2)
    code, out, _ = with_verb(capsys, "doctor", lambda arguments: report)
    assert (code, out) == (2, "text\n")


def test_export_copies_the_last_checkpoint(capsys, work_folder, checkpoint):
    run = Run.create(load_config("run.toml"))
    for step in (1, 2):
        run.checkpoint_folder(step).parent.mkdir(exist_ok=True)
        _copy(checkpoint, run.checkpoint_folder(step))
    (run.checkpoint_folder(2) / "optimizer.bin").write_text("not exported")
    code, out, _ = outcome_of(capsys, "export", str(run.folder), "out", "--json")
    assert code == 0
    assert json.loads(out)["source"].endswith("step-0002")
    exported = sorted(path.name for path in (work_folder / "out").iterdir())
    whole = ["config.json", "model.safetensors", "tokenizer.json"]
    assert exported == sorted([*whole, "generation_config.json", "tokenizer_config.json"])
    outcome_of(capsys, "export", str(run.folder), "copy", "--step", "1", "--format", "limosa")
    assert sorted(path.name for path in (work_folder / "copy").iterdir()) == whole
    assert "not an empty folder" in bad_input(capsys, "export", str(run.folder), "out")
    assert "no checkpoint of step 7" in bad_input(
        capsys, "export", str(run.folder), "o", "--step", "7"
    )


def _copy(source, target):
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())


def test_light_verbs_load_no_tensor_library(work_folder, build_group):
    run = Run.create(load_config("run.toml"))
    run.record_step(1, {}, [build_group([1.0])])
    code = (
        "import sys\nfrom rl.cli import main\n"
        "codes = [main(['check', 'run.toml']), main(['show', sys.argv[1]]),"
        " main(['show', sys.argv[1], '--trajectory', 'task#0', '--json'])]\n"
        "heavy = [m for m in ('torch', 'ray', 'vllm', 'transformers') if m in sys.modules]\n"
        "print(codes, heavy)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(run.folder)], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "[0, 0, 0] []", result.stdout + result.stderr
