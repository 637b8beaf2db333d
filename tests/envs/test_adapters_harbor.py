"""Task folders of Harbor's format: read, played, graded; the real package reads the same."""

import asyncio
import json
import random
import subprocess

import pytest

from envs.adapters import harbor
from envs.cache import cache_folder
from envs.environment import Split
from envs.messages import Message, Role, ToolCall
from envs.play import play
from rewards.check import check_rewards
from rewards.harbor_tests import grade, read_reward
from rewards.reward import Invalid, Scored

TEST_SH = """#!/bin/bash
cd /app
if python3 /tests/check.py; then echo 1 > /logs/verifier/reward.txt
else echo 0 > /logs/verifier/reward.txt; fi
"""
CHECK = """import json, sys
counts = json.load(open("/app/out/counts.json"))
sys.exit(counts != {"a": NUMBER, "b": 1})
"""
SOLVE = """#!/bin/bash
mkdir -p /app/out
echo '{"a": NUMBER, "b": 1}' > /app/out/counts.json
"""


def write_task(
    folder, number=3, dockerfile="FROM ubuntu:24.04\nWORKDIR /app\nCOPY data ./data\n", **files
):
    texts = {
        "task.toml": 'version = "1.0"\n[verifier]\ntimeout_sec = 60.0\n[environment]\ncpus = 1\n',
        "instruction.md": "Count the letters of /app/data/letters.txt; see /app/out/counts.json.\n",
        "environment/Dockerfile": dockerfile,
        "environment/data/letters.txt": "a" * number + "b",
        "tests/test.sh": TEST_SH,
        "tests/check.py": CHECK.replace("NUMBER", str(number)),
        "solution/solve.sh": SOLVE.replace("NUMBER", str(number)),
        **files,
    }
    for name, text in texts.items():
        if text is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)


@pytest.fixture
def folder(tmp_path):
    for number in range(1, 16):
        write_task(tmp_path / f"letters-{number}", number)
    return str(tmp_path)


def call(name, **arguments):
    return Message(role=Role.POLICY, tool_calls=(ToolCall(name=name, arguments=arguments),))


def play_calls(task, *actions):
    script = iter(actions)
    return asyncio.run(play(harbor.SPEC, task, lambda _: next(script), max_turns=len(actions)))


def score(episode):
    return asyncio.run(grade(episode))


def read(folder, number=3):
    from pathlib import Path

    return harbor.read_task(Path(folder) / f"letters-{number}")


def test_the_splits_hold_all_tasks_and_paths_are_those_of_the_workspace(folder):
    tasks = [task for split in Split for task in harbor.make_tasks(split, folder)]
    assert len({task.id for task in tasks}) == 15
    assert tasks[0].data["instruction"] == (
        "Count the letters of /workspace/data/letters.txt; see /workspace/out/counts.json."
    )
    assert list(tasks[0].data["files"]) == ["data/letters.txt"]
    assert tasks[0].reference["seconds"] == 60.0


def test_the_solution_is_paid_and_what_is_wrong_or_missing_is_not(folder):
    task = read(folder)
    expert = harbor.make_expert(task, random.Random(0))
    episode = asyncio.run(play(harbor.SPEC, task, expert))
    assert score(episode) == Scored(value=1.0)
    assert set(episode.artifacts["files"]) == {"data/letters.txt", "out/counts.json"}
    wrong = play_calls(
        task, call("write_file", path="out/counts.json", text='{"a": 9}'), call("submit")
    )
    assert score(wrong) == Scored(value=0.0)
    assert score(play_calls(task, call("submit"))) == Scored(value=0.0)
    assert score(play_calls(task, call("list_files"))) == Scored(value=0.0)


def test_the_policy_sees_its_files_and_no_tests(folder):
    episode = play_calls(
        read(folder),
        call("run", command="cat data/letters.txt; pwd; ls -a"),
        call("run", command="exit 3"),
    )
    seen = episode.messages[2].text
    assert seen.startswith("aaab/workspace")
    assert "test" not in seen
    assert episode.messages[4].text == "(exit code 3)"


def test_a_forged_reward_is_not_handed_in(folder):
    forged = call(
        "run", command="mkdir -p .harbor/logs/verifier; echo 1 > .harbor/logs/verifier/reward.txt"
    )
    assert score(play_calls(read(folder), forged, call("submit"))) == Scored(value=0.0)


def test_a_script_that_writes_nothing_or_nonsense_is_told_apart(tmp_path):
    outcomes = []
    for number, script in enumerate(("true", "echo 7 > /logs/verifier/reward.txt")):
        write_task(tmp_path / str(number), **{"tests/test.sh": script})
        task = harbor.read_task(tmp_path / str(number))
        outcomes.append(score(play_calls(task, call("submit"))))
    assert outcomes[0] == Scored(value=0.0, parts={"reward_written": 0.0})
    assert isinstance(outcomes[1], Invalid)
    assert outcomes[1].reason == "no_reward"


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("1", Scored(value=1.0)),
        ("0.25\n", Scored(value=0.25)),
        ('{"reward": 0.5, "speed": 2}', Scored(value=0.5, parts={"speed": 2.0})),
    ],
)
def test_a_reward_is_a_number_or_an_object(text, outcome):
    assert read_reward(text) == outcome


@pytest.mark.parametrize("text", ["", "yes", "NaN", "1.5", "-1", '"1"', '{"speed": 2}', "[1]"])
def test_what_is_no_reward_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011  texts of json too
        read_reward(text)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"dockerfile": "FROM x\nRUN apt-get install -y gcc\n"}, "an image of its own: RUN apt"),
        ({"dockerfile": "FROM x\nCOPY data data\n"}, "sets no WORKDIR"),
        ({"dockerfile": "FROM x\nWORKDIR /app\nCOPY data /etc\n"}, "copies to /etc"),
        ({"environment/docker-compose.yaml": "services: {}"}, "an image of its own"),
        ({"task.toml": '[[steps]]\nname = "one"\n'}, "several steps"),
        ({"task.toml": "= 3"}, "Invalid"),
        ({"tests/test.sh": None}, "test.sh is missing"),
        ({"instruction.md": None}, "instruction.md"),
    ],
)
def test_a_task_that_needs_more_is_refused_by_name(tmp_path, files, message):
    write_task(tmp_path / "hard", **files)
    with pytest.raises(ValueError, match=message) as caught:
        harbor.make_tasks(Split.TRAIN, str(tmp_path))
    assert str(caught.value).startswith(f"{tmp_path}/hard: ")


def test_a_folder_without_tasks_is_one_line(tmp_path, folder):
    with pytest.raises(ValueError, match="no such tasks: elsewhere"):
        harbor.make_tasks(Split.TRAIN, folder, ["elsewhere"])


@pytest.mark.slow
def test_the_check_finds_nothing(folder, monkeypatch):
    from dataclasses import replace

    spec = replace(harbor.SPEC, tasks=lambda split: harbor.make_tasks(split, folder))
    assert asyncio.run(check_rewards(spec, num_tasks=1)) == []


PROBE = """
import json, sys
from harbor.models.task.task import Task
task = Task(sys.argv[1])
print(json.dumps({"instruction": task.instruction, "seconds": task.config.verifier.timeout_sec,
                  "valid": Task.is_valid_dir(sys.argv[1])}))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not (cache_folder() / "adapters" / "harbor").exists(), reason="no harbor here: make adapters"
)
def test_harbor_itself_reads_the_same_task(folder):
    python = cache_folder() / "adapters" / "harbor" / "bin" / "python"
    command = [str(python), "-c", PROBE, f"{folder}/letters-3"]
    shown = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    ours = read(folder)
    assert shown["valid"]
    assert shown["seconds"] == ours.reference["seconds"]
    assert shown["instruction"].strip().replace("/app", "/workspace") == ours.data["instruction"]
