"""The six folders are the six packages, and nobody else's."""

import ast
import importlib
import importlib.metadata
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("rl", "rollout", "rewards", "envs", "model", "kernels")


@pytest.mark.parametrize("package", PACKAGES)
def test_each_folder_is_the_package_of_its_name(package):
    module_file = importlib.import_module(package).__file__
    assert module_file is not None
    assert Path(module_file).parent == ROOT / package


@pytest.mark.parametrize("package", PACKAGES)
def test_no_other_distribution_installs_a_package_of_our_names(package):
    owners = importlib.metadata.packages_distributions().get(package, [])
    assert [owner for owner in owners if owner != "limosa"] == []


def test_kernels_is_marked_as_ours():
    import kernels

    assert kernels.OWNER == "limosa"


def test_transformers_does_not_take_our_kernels_for_the_hugging_face_package():
    # Loading transformers writes to the console of this process; a process of its own is cleaner.
    code = "from transformers.utils import is_kernels_available as f; print(f())"
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert result.stdout.split()[-1] == "False"


def test_our_version_lies_outside_what_transformers_takes_for_its_kernels():
    major, minor, *_ = importlib.metadata.version("limosa").split(".")
    assert (int(major), int(minor)) not in {(0, 17), (0, 18), (0, 19)}


def test_entry_points_of_the_installation_are_those_of_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {("console_scripts", *item) for item in project["scripts"].items()} | {
        (group, *item) for group, items in project["entry-points"].items() for item in items.items()
    }
    installed = importlib.metadata.distribution("limosa").entry_points
    assert {(entry.group, entry.name, entry.value) for entry in installed} == declared


def test_every_entry_point_loads():
    for entry in importlib.metadata.distribution("limosa").entry_points:
        is_object = entry.group in {"limosa.environments", "limosa.sandboxes"}
        assert is_object != callable(entry.load()), entry


def test_every_dependency_is_pinned_in_the_lock():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["adapters"], *extras["cpu"], *extras["dev"]]
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pinned = {line.partition("==")[0].lower() for line in lines if "==" in line[1:]}
    names = {name.split(">")[0].split("=")[0].lower() for name in wanted}
    assert names - pinned - {"torch"} == set()


def test_every_package_that_the_sources_import_is_a_declared_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["cpu"], *extras["adapters"]]
    declared = {re.split(r"[<>=]", name)[0] for name in wanted}
    imported = set()
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
    foreign = imported - sys.stdlib_module_names - set(PACKAGES)
    owners = importlib.metadata.packages_distributions()
    assert {name: owners[name] for name in foreign if not declared & set(owners[name])} == {}


def test_the_wheel_holds_the_six_packages_and_nothing_else(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)


def test_the_environment_holds_what_the_lock_says():
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            assert importlib.metadata.version(name) == version
