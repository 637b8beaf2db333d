import json
import re

import pytest

from rl.check import Verdict, check_ready, check_run, require_ready
from rl.config_loader import ConfigError, load_config


def errors(findings):
    return [(f.subject, f.text) for f in findings if f.verdict is Verdict.ERROR]


def check(overrides=(), num_tasks=4):
    return check_run(load_config("run.toml", list(overrides)), num_tasks)


def failures(checked):
    return {
        name: [(failed.name, failed.details) for failed in proof.failures]
        for name, proof in checked.environments.items()
    }


def test_a_sound_run_has_findings_and_a_badge_and_no_error(work_folder):
    checked = check()
    assert (checked.num_errors, errors(checked.findings)) == (0, [])
    said = " | ".join(finding.text for finding in checked.findings)
    assert "checkpoint: complete" in said
    assert "train tasks" in said
    assert "held_out tasks" in said
    assert "openings have at most" in said
    proof = checked.environments["echo"]
    assert re.fullmatch(r"sound: 24 checks \(1 skipped\), 8 tasks, \d+\.\d s", proof.badge)


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ("text: What is said.", "", "tools"),
        ("float(said ==", "float(said !=", "empty"),
        ('return "heard"', "import os; return os.urandom(9).hex()", "determinism"),
        ("self.said = text", "raise RuntimeError", "plays"),
    ],
)
def test_an_environment_that_breaks_its_contract_is_found(work_folder, good, bad, said):
    world = work_folder / "echo_world.py"
    assert good in world.read_text()
    world.write_text(world.read_text().replace(good, bad))
    checked = check(num_tasks=2)
    assert checked.environments["echo"].failures[0].name == said
    assert checked.environments["echo"].badge.startswith(f"unsound: {said}")
    assert checked.num_errors


def test_the_contract_is_played_with_the_tasks_of_the_file(work_folder):
    task = {"environment": "echo_world:SPEC", "grader": "echo_world:grade"}
    wrong = {"data": {"word": "a"}, "reference": {"word": "b"}}
    lines = [json.dumps(task | wrong | {"id": f"mine/{i}"}) for i in range(40)]
    (work_folder / "tasks.jsonl").write_text("\n".join(lines))
    world = work_folder / "echo_world.py"  # its expert says what it reads, not what is right
    world.write_text(world.read_text().replace('task.reference["word"]})', 'task.data["word"]})'))
    assert failures(check(num_tasks=1)) == {"echo": []}
    found = failures(check(["environments.echo.tasks=tasks.jsonl"], 1))
    (((name, details),),) = found.values()
    assert name == "gold"
    assert len(details) == 2  # one task of each split
    assert all(detail.startswith("mine/") for detail in details)


def test_an_expert_may_take_as_many_turns_as_the_run_allows(work_folder):
    world = work_folder / "echo_world.py"  # its expert now says nothing 39 times before
    text = world.read_text()
    word = 'task.reference["word"]}'
    late = 'task.reference["word"] if len(messages) == 1 + 2 * 39 else ""}'
    at_once = "    call = ToolCall"
    assert (text.count(word), text.count(at_once), text.count("(call,)")) == (1, 1, 1)
    text = text.replace(word, late).replace(at_once, "    call = lambda messages: ToolCall")
    world.write_text(text.replace("tool_calls=(call,)", "tool_calls=(call(messages),)"))
    (((name, details),),) = failures(check(num_tasks=1)).values()
    assert name == "gold"
    assert all("attempts" in detail for detail in details)
    assert failures(check(["rollout.max_turns=40"], 1)) == {"echo": []}


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
