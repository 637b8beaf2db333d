"""Which problems are usable: found out by running them, and remembered."""

import pytest

from envs.corpora import code_problems, problem_files
from envs.corpora.code_problems import examine, load_problems, split_files
from envs.corpora.problem_files import RawProblem, find_data_file, find_parameters

SOLUTION = """
LIMIT = 3

def keep(x):
    return x > LIMIT

def main_solution(xs, k):
    return [x + k for x in xs if keep(x)]
"""
GENERATOR = """
from random import Random

def generate_inputs(rng):
    return {"xs": [rng.randint(0, 9) for _ in range(4)], "k": rng.randint(0, 5)}
"""


def make_raw(solution=SOLUTION, generator=GENERATOR, **fields):
    return RawProblem(
        key="test-1",
        description="Add k to what is above 3.",
        function="main_solution",
        parameters=("xs", "k"),
        solution=solution,
        generator=generator,
        **fields,
    )


async def test_a_usable_problem_has_tests_files_and_a_fault_that_a_public_test_shows():
    problem = await examine(make_raw())
    assert problem is not None
    assert set(problem.files) == {"solution.py", "helpers.py"}
    assert "from helpers import keep" in problem.files["solution.py"]
    assert len(problem.tests) == 15
    for arguments, value in problem.tests:
        assert value == [x + arguments["k"] for x in arguments["xs"] if x > 3]
    assert problem.faulty_files is not None
    changed = [p for p in problem.files if problem.files[p] != problem.faulty_files[p]]
    assert len(changed) == 1


@pytest.mark.parametrize(
    "solution",
    [
        "import numpy\ndef main_solution(xs, k): return xs",
        "def main_solution(xs, k): return 7",
        "def main_solution(xs, k): return {1: xs}",
        "import random\ndef main_solution(xs, k): return random.random()",
        "def main_solution(xs, k): return id(object()) + hash(str(xs))",
        "def main_solution(xs, k): return xs[k]",
        "def main_solution(xs, k): return str(xs) * 1000",
    ],
    ids=["package", "constant", "not plain", "random", "hash", "raises", "long"],
)
async def test_what_cannot_be_tested_is_no_problem(solution):
    assert await examine(make_raw(solution)) is None


async def test_a_generator_that_fails_leaves_no_problem():
    assert await examine(make_raw(generator="def generate_inputs(rng): return rng.nothing")) is None


async def test_inputs_may_be_given_instead_of_drawn():
    inputs = tuple({"xs": [number], "k": number} for number in range(8))
    problem = await examine(make_raw(generator="", inputs=inputs))
    assert problem is not None
    assert [arguments for arguments, _ in problem.tests] == list(inputs)


def test_a_function_without_helpers_stays_one_file():
    assert split_files("def main_solution(x): return x", "main_solution") is None


def test_what_was_found_out_is_remembered(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    bad = make_raw("def main_solution(xs, k): return 7")
    monkeypatch.setitem(problem_files.READERS, "test", lambda limit: [make_raw(), bad][:limit])
    first = load_problems("test", 2)
    assert [problem.key for problem in first] == ["test-1"]

    async def refuse(_):
        raise AssertionError("examined again")

    monkeypatch.setattr(code_problems, "examine", refuse)
    (again,) = load_problems("test", 2)
    assert again.files == first[0].files
    assert [list(test) for test in again.tests] == [list(test) for test in first[0].tests]


def test_an_unknown_set_and_a_missing_package_are_one_line():
    with pytest.raises(ValueError, match="no problem set 'x'; known: codeio, human_eval"):
        load_problems("x", 1)
    with pytest.raises(ValueError, match=r"pip install limosa\[tasks\]"):
        find_data_file("no_such_package", "data", "no-such-package")


@pytest.mark.parametrize(
    ("source", "parameters"),
    [
        ("def f(a, b=1, *, c): pass", ("a", "b", "c")),
        ("def f(*a): pass", None),
        ("def f(a, /): pass", None),
        ("def g(a): pass", None),
        ("def f(", None),
    ],
)
def test_parameters_are_those_that_have_names(source, parameters):
    assert find_parameters(source, "f") == parameters


@pytest.mark.parametrize(("name", "count"), [("codeio", 3002), ("human_eval", 164)])
def test_the_installed_problem_sets_are_read(name, count):
    try:
        raws = list(problem_files.READERS[name](20))
    except ValueError as error:
        pytest.skip(str(error))
    assert 15 < len(raws) <= 20
    assert len({raw.key for raw in raws}) == len(raws)
    assert all(int(raw.key.rpartition("-")[2]) < count for raw in raws)
    assert all(raw.generator or raw.inputs or name == "human_eval" for raw in raws)
