"""Names to environments."""

import pytest

from envs.code_tests import SPEC
from envs.registry import load_environment

MODULE = """
from envs.environment import EnvironmentSpec
class Empty:
    def reset(self): return "hello"
SPEC = EnvironmentSpec(name="mine", environment=Empty, tasks=lambda split: [])
OTHER = 3
"""


def test_an_environment_is_found_by_its_registered_name_and_by_its_path():
    assert load_environment("code_tests") is SPEC
    assert load_environment("envs.code_tests:SPEC") is SPEC


def test_an_environment_may_lie_in_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "my_world.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["somewhere"])
    assert load_environment("my_world:SPEC").name == "mine"


def test_nothing_in_the_working_folder_stands_in_for_a_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["somewhere"])
    with pytest.raises(ValueError, match="cannot be loaded"):
        load_environment("no_such_module:SPEC")
    import sys

    assert sys.path[0] == "somewhere"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("code_test", r"no environment 'code_test' \(did you mean 'code_tests'\?\)"),
        ("zzz", "no environment 'zzz'; known: .*code_tests, .*retrieval, or a path"),
        ("envs.code_tests:NOTHING", "cannot be loaded: AttributeError"),
        ("envs.nothing:SPEC", "cannot be loaded: ModuleNotFoundError: No module named"),
        ("envs.code_tests:RESULTS", "is a dict, no EnvironmentSpec"),
    ],
)
def test_a_wrong_name_is_one_line(name, message):
    with pytest.raises(ValueError, match=message) as caught:
        load_environment(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("my_broken_world", "1 / 0", "ZeroDivisionError: division by zero"),
        ("my_script", "raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_module_that_raises_is_one_line(tmp_path, monkeypatch, name, line, said):
    (tmp_path / f"{name}.py").write_text(f"{line}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=f"cannot be loaded: {said}"):
        load_environment(f"{name}:SPEC")
