"""`limosa new-env` writes a package that is sound and runs as it is."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rl.cli import main
from rl.new_env import TEMPLATE, write_package


@pytest.fixture
def package(tmp_path, monkeypatch, capsys):
    """A folder in which `limosa new-env lost_found` was called, and what it printed."""
    for module in [name for name in sys.modules if name.partition(".")[0] == "lost_found"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    assert main(["new-env", "lost_found", "--json"]) == 0
    monkeypatch.chdir(tmp_path / "lost_found")
    monkeypatch.syspath_prepend(tmp_path / "lost_found")
    return json.loads(capsys.readouterr().out)


def test_the_package_has_the_name_everywhere(package):
    folder = Path(package["folder"])
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {"pyproject.toml", "run.toml", "README.md"} <= files
    assert {"lost_found/environment.py", "lost_found/grader.py", "lost_found/tasks.jsonl"} <= files
    assert "tests/test_lost_found.py" in files
    assert len(files) == len(package["files"])
    text = "".join((folder / name).read_text() for name in files)
    assert "class LostFound:" in text
    assert [old for old in ("my_env", "MyEnv", "CHECKPOINT") if old in text] == []
    points = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"]
    assert points["limosa.environments"] == {"lost_found": "lost_found.environment:SPEC"}


def test_the_package_passes_the_check(package, capsys):
    assert main(["check", "run.toml", "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)
    assert checked["errors"] == 0
    proof = checked["environments"]["lost_found"]
    assert proof["sound"]
    assert proof["badge"].startswith("sound: 24 checks (1 skipped), 8 tasks, ")
    assert {"name", "rule", "verdict", "details", "seconds"} == set(proof["results"][0])


@pytest.mark.slow
def test_the_test_of_the_package_passes(package):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["My-World", "1st", "class", "", "../up", "json", "envs"])
def test_a_name_that_can_be_no_package_is_one_line(name, tmp_path):
    with pytest.raises(ValueError, match="package") as caught:
        write_package(name, tmp_path)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten_and_a_checkpoint_is_needed(tmp_path):
    (tmp_path / "taken_name").mkdir()
    with pytest.raises(ValueError, match="taken_name exists"):
        write_package("taken_name", tmp_path)
    with pytest.raises(ValueError, match="name one with --checkpoint"):
        write_package("free_name", tmp_path, tmp_path / "absent")


def test_what_is_copied_is_real_code():
    for path in TEMPLATE.rglob("*.py"):
        compile(path.read_text(), str(path), "exec")
