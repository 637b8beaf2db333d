"""What README.md says is so: the tree, the recipe for an environment, the commands."""

import asyncio
import random
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("rl", "rollout", "rewards", "envs", "model", "kernels")
README = (ROOT / "README.md").read_text()


def test_the_tree_names_exactly_the_source_files():
    block = README.partition("## The tree")[2].partition("\n## ")[0]
    parents: list[str] = []
    listed = set()
    for indent, name in re.findall(r"^ {4}( *)([\w./-]+) +\S", block, re.MULTILINE):
        del parents[len(indent) // 2 :]
        if name.endswith("/"):
            parents.append(name)
        else:
            listed.add("".join(parents) + name)
    present = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py" and path.parent.parent != ROOT / "kernels"  # ops: one line
    }
    assert {name for name in listed if name.endswith(".py")} == present


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """The two blocks of the recipe as `guess.py`, in a folder that the README's reader works in."""
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 2
    (tmp_path / "guess.py").write_text("\n\n".join(blocks))
    monkeypatch.delitem(sys.modules, "guess", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return blocks


def test_an_environment_takes_forty_lines(recipe):
    assert len(recipe[0].splitlines()) <= 40


def test_the_environment_of_the_recipe_is_solved_by_its_expert(recipe):
    from envs.config import EnvironmentConfig
    from envs.environment import Split
    from envs.play import play
    from envs.registry import load_environment
    from envs.task_sets import list_tasks
    from rewards.registry import load_grader
    from rewards.reward import Scored

    spec = load_environment("guess:SPEC")
    tasks = [task for split in Split for task in list_tasks(spec, EnvironmentConfig(), split)]
    assert len(tasks) == 60
    for task in tasks:
        episode = asyncio.run(play(spec, task, spec.expert(task, random.Random(0))))
        assert asyncio.run(load_grader(task.grader)(episode)) == Scored(value=1.0)


@pytest.mark.parametrize(
    "section", [{"use": "guess:Guess", "tasks": "guess:TASKS"}, {"use": "guess:SPEC"}]
)
def test_the_checker_accepts_the_environment_of_the_recipe(recipe, section):
    from envs.config import EnvironmentConfig
    from envs.registry import load_environment
    from rewards.check import check_rewards

    spec = load_environment(section["use"])
    assert asyncio.run(check_rewards(spec, EnvironmentConfig(**section))) == []


def test_every_make_target_in_the_documents_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = README + (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"^    make ([a-z-]+)|`make ([a-z-]+)`", text, re.MULTILINE))
    assert {first or second for first, second in named} <= targets


def test_every_verb_in_the_readme_exists():
    from rl.verbs import VERBS

    named = set(re.findall(r"(?:\.venv/bin/|`)limosa ([a-z][a-z-]+)", README))
    assert named
    assert named <= set(VERBS)


def test_files_of_the_reading_order_exist():
    block = README.partition("## Reading order")[2].partition("\n## ")[0]
    paths = re.findall(r"`([\w./-]+\.(?:py|toml))`", block)
    assert len(paths) >= 10
    assert [path for path in paths if not (ROOT / path).exists()] == []
