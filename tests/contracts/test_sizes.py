"""Budgets that keep a file and a function readable in one sitting."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("rl", "rollout", "rewards", "envs", "model", "kernels")
MAX_FILE_LINES = 400
MAX_KERNEL_LINES = 600
MAX_STATEMENTS = 45
MAX_CONFIG_FIELDS = 150

SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_stays_within_its_budget(path):
    is_kernel = path.relative_to(ROOT).parts[0] == "kernels"
    budget = MAX_KERNEL_LINES if is_kernel else MAX_FILE_LINES
    assert len(path.read_text().splitlines()) <= budget


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_function_stays_within_its_budget(path):
    too_long = {
        node.name: count
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (count := _statements(node)) > MAX_STATEMENTS
    }
    assert too_long == {}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_says_what_it_is_for_in_ascii(path):
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text))
    assert text.isascii()


def test_the_loop_reads_in_one_screen():
    tree = ast.parse((ROOT / "rl/train.py").read_text())
    loops = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncFunctionDef)
        and any(isinstance(inner, ast.For | ast.AsyncFor) for inner in ast.walk(node))
    ]
    assert loops
    assert all(node.end_lineno - node.lineno <= 60 for node in loops)


def test_the_configuration_stays_within_its_budget():
    from pydantic import BaseModel

    from envs.config import EnvironmentConfig
    from rl.config import RunConfig

    def num_fields(section: type[BaseModel]) -> int:
        inner = [field.annotation for field in section.model_fields.values()]
        nested = [kind for kind in inner if isinstance(kind, type) and issubclass(kind, BaseModel)]
        return len(inner) - len(nested) + sum(map(num_fields, nested))

    total = num_fields(RunConfig) + num_fields(EnvironmentConfig)
    assert 0 < total <= MAX_CONFIG_FIELDS


def _statements(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return sum(isinstance(node, ast.stmt) for node in ast.walk(function)) - 1
