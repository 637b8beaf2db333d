import json

import pytest

from rl.check import Verdict, check_ready, check_run, require_ready
from rl.config_loader import ConfigError, load_config


def errors(findings):
    return [(f.subject, f.text) for f in findings if f.verdict is Verdict.ERROR]


def test_a_sound_run_has_findings_and_no_error(work_folder):
    findings = check_run(load_config("run.toml"))
    assert errors(findings) == []
    said = " | ".join(finding.text for finding in findings)
    assert "checkpoint: complete" in said
    assert "train tasks" in said
    assert "held_out tasks" in said
    assert "openings have at most" in said
    assert "keeps the contract in 4 tasks" in said


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ("text: What is said.", "", "each parameter is described under Args"),
        ("float(said ==", "float(said !=", "a policy that calls no tool scores 0"),
        ('return "heard"', "return str(id(self))", "the same actions give the same replies"),
        ("self.said = text", "raise RuntimeError", "the environment does not break"),
    ],
)
def test_an_environment_that_breaks_its_contract_is_found(work_folder, good, bad, said):
    world = work_folder / "echo_world.py"
    assert good in world.read_text()
    world.write_text(world.read_text().replace(good, bad))
    assert said in errors(check_run(load_config("run.toml")))[0][1]


def test_the_contract_is_played_with_the_tasks_of_the_file(work_folder):
    task = {"environment": "echo_world:SPEC", "grader": "echo_world:grade"}
    wrong = {"data": {"word": "a"}, "reference": {"word": "b"}}
    lines = [json.dumps(task | wrong | {"id": f"mine/{i}"}) for i in range(40)]
    (work_folder / "tasks.jsonl").write_text("\n".join(lines))
    world = work_folder / "echo_world.py"  # its expert says what it reads, not what is right
    world.write_text(world.read_text().replace('task.reference["word"]})', 'task.data["word"]})'))
    assert errors(check_run(load_config("run.toml"))) == []
    found = errors(check_run(load_config("run.toml", ["environments.echo.tasks=tasks.jsonl"]), 1))
    assert len(found) == 2  # one task of each split
    for subject, text in found:
        assert subject == "environments.echo"
        assert "an expert scores 1 (mine/" in text


def test_every_error_is_found_not_only_the_first(work_folder):
    config = load_config(
        "run.toml",
        [
            "model.checkpoint=nowhere",
            "rollout.ray_address=127.0.0.1:1",
            "environments.echo.options.nonsense=1",
        ],
    )
    assert {subject for subject, _ in errors(check_ready(config))} == {
        "model.checkpoint",
        "rollout.ray_address",
        "environments.echo",
    }
    with pytest.raises(ConfigError, match=r"no such checkpoint folder.*\(and \d more"):
        require_ready(config)


def test_a_cache_too_small_for_the_conversations_is_found(work_folder):
    config = load_config("run.toml", ["rollout.max_concurrent_episodes=1000000"])
    ((subject, text),) = errors(check_ready(config))
    assert subject == "rollout.max_concurrent_episodes"
    assert "rollout.kv_cache_mib = 256 is too small" in text


def test_a_grader_that_does_not_load_is_found(work_folder):
    world = work_folder / "echo_world.py"
    world.write_text(world.read_text().replace("echo_world:grade", "echo_world:graed"))
    ((subject, text), *_) = errors(check_ready(load_config("run.toml")))
    assert subject == "environments.echo"
    assert "grader 'echo_world:graed' cannot be loaded" in text


def test_engines_of_a_cluster_need_no_memory_here(work_folder):
    overrides = ["rollout.kv_cache_mib=100000000", "rollout.ray_address=auto"]
    assert errors(check_ready(load_config("run.toml", overrides))) == []
