"""Each import contract of pyproject.toml is alive: break it on purpose, and it says so."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("rl", "rollout", "rewards", "envs", "model", "kernels")
VIOLATIONS = {
    "layers": ("envs/task.py", "import rewards.reward"),
    "text-world": ("rewards/reward.py", "import torch"),
    "light-config": ("rollout/trajectory.py", "import torch"),
    "vllm": ("rollout/agent_loop.py", "import vllm"),
    "ray": ("rl/learner.py", "import ray"),
    "triton": ("model/decoder.py", "import triton"),
    "references": ("kernels/short_conv/reference.py", "import triton"),
    "ops": ("kernels/short_conv/__init__.py", "import kernels.delta_attention"),
    "environments": ("envs/retrieval.py", "import envs.code_tests"),
    "graders": ("rewards/cited_answer.py", "import rewards.hidden_tests"),
    "rl-inside": ("rl/credit.py", "import rl.train"),
}
"""Contract id -> a file, and the import in it that the contract forbids."""


@pytest.fixture(scope="module")
def copy_of_the_sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def lint_imports(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", *arguments]
    # The checkout comes first on the path, so that the copy is what is read.
    environment = os.environ | {"PYTHONPATH": str(folder), "COLUMNS": "200"}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env=environment
    )


def test_every_contract_holds(copy_of_the_sources):
    result = lint_imports(copy_of_the_sources)
    assert result.returncode == 0, result.stdout


def test_every_contract_has_a_violation_here():
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    declared = {contract["id"] for contract in tools["importlinter"]["contracts"]}
    assert declared == set(VIOLATIONS)


@pytest.mark.parametrize("contract", VIOLATIONS)
def test_a_forbidden_import_breaks_its_contract(contract, copy_of_the_sources):
    name, line = VIOLATIONS[contract]
    path = copy_of_the_sources / name
    original = path.read_text()
    path.write_text(f"{original}\n{line}\n")
    try:
        result = lint_imports(copy_of_the_sources, "--contract", contract)
    finally:
        path.write_text(original)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "BROKEN" in result.stdout
