"""Tasks: splits by hash, JSONL files, and one line for whatever is wrong."""

import json
import sys

import pytest

from envs.config import EnvironmentConfig
from envs.environment import OWN_REWARD, EnvironmentSpec, Split
from envs.task import Task
from envs.task_rows import read_tasks, to_task
from envs.task_sets import HELD_OUT_SHARE, list_tasks, load_tasks, make_tasks, split_of


def make_line(**fields):
    return json.dumps(
        {"id": "a/1", "environment": "code_tests", "grader": "hidden_tests", **fields}
    )


def test_the_split_depends_on_the_id_alone_and_has_the_share_it_says():
    ids = [f"task/{index}" for index in range(5000)]
    held_out = sum(split_of(task_id) is Split.HELD_OUT for task_id in ids)
    assert abs(held_out / len(ids) - HELD_OUT_SHARE) < 0.02
    assert split_of("code_tests/above-1-add-1-sum") is Split.HELD_OUT, "splits must never move"


@pytest.mark.parametrize("name", ["code_tests", "retrieval"])
def test_the_splits_of_an_environment_are_disjoint_and_follow_the_hash(name):
    sets = {split: load_tasks(name, EnvironmentConfig(), split) for split in Split}
    for split, tasks in sets.items():
        assert all(split_of(task.id) is split for task in tasks)
        assert len({task.id for task in tasks}) == len(tasks)
    assert 0.17 < len(sets[Split.HELD_OUT]) / sum(map(len, sets.values())) < 0.23


def test_a_section_may_use_an_environment_of_another_name():
    tasks = load_tasks("mine", EnvironmentConfig(use="retrieval"), Split.HELD_OUT)
    assert tasks[0].environment == "retrieval"


def test_tasks_come_from_a_file(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text(
        "\n".join(make_line(id=f"a/{index}", seed=index) for index in range(40)) + "\n\n"
    )
    section = EnvironmentConfig(use="code_tests", tasks=str(path))
    train, held_out = (load_tasks("mine", section, split) for split in Split)
    assert len(train) + len(held_out) == 40
    assert {task.id for task in train}.isdisjoint(task.id for task in held_out)
    assert train[0] == Task(
        id=train[0].id, environment="code_tests", grader="hidden_tests", seed=train[0].seed
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "a', r":2: not valid JSON \(Unterminated string"),
        ("[1]", ":2: not a JSON object"),
        (make_line(gradr="x"), r":2: unknown field 'gradr' \(did you mean 'grader'\?\)"),
        (make_line(zzz=1), ":2: unknown field 'zzz'; known: id, environment"),
        ('{"id": "a"}', ":2: field 'environment' is missing or no text"),
        ("[" * 100_000, ":2: not valid JSON"),
        (make_line(id=7), ":2: field 'id' is missing or no text"),
        (make_line(grader=""), ":2: task 'a/1': grader is empty"),
        (make_line(data=[]), ":2: field 'data' is no JSON object"),
        (make_line(seed="x"), ":2: field 'seed' is no integer"),
        (make_line(id="first"), ":2: task id 'first' is given twice, first in line 1"),
    ],
)
def test_a_broken_line_is_named_in_one_line(tmp_path, line, message):
    path = tmp_path / "tasks.jsonl"
    path.write_text(make_line(id="first") + "\n" + line + "\n")
    with pytest.raises(ValueError, match=message) as caught:
        read_tasks(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nothing\.jsonl: cannot read the tasks: No such file"):
        read_tasks(tmp_path / "nothing.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not UTF-8"):
        read_tasks(tmp_path / "binary")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ValueError, match="no task in the file"):
        read_tasks(tmp_path / "empty")


def test_a_split_without_tasks_is_an_error(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text(make_line(id="a/1"))
    empty = next(split for split in Split if split is not split_of("a/1"))
    with pytest.raises(ValueError, match=f"has no {empty} tasks"):
        load_tasks("mine", EnvironmentConfig(use="code_tests", tasks=str(path)), empty)


def test_an_unknown_option_is_an_error():
    with pytest.raises(ValueError, match=r"'code_tests': options: .*'levl'"):
        load_tasks("code_tests", EnvironmentConfig(options={"levl": 3}), Split.TRAIN)


def test_a_generator_that_raises_is_an_error_of_one_line():
    def tasks(split):
        raise KeyError("corpus")

    spec = EnvironmentSpec(name="a", environment=object, tasks=tasks)
    with pytest.raises(ValueError, match="'a': its tasks cannot be made: KeyError: 'corpus'"):
        make_tasks(spec, Split.TRAIN)


class Guess:
    def reset(self, secret, seed=0):
        return "guess"

    def guess(self, number: int) -> str:
        """Guess."""
        return "no"

    def reward(self):
        return 0.0


ROWS = [{"id": f"guess/{n}", "secret": n} for n in range(40)]


def rows_of_a_function():
    yield from ROWS


def raise_an_error():
    yield ROWS[0]
    raise KeyError("corpus")


@pytest.fixture
def module(monkeypatch):
    """This file under a name that dotted paths reach."""
    monkeypatch.setitem(sys.modules, "guess_tasks", sys.modules[__name__])
    return "guess_tasks"


@pytest.mark.parametrize("source", ["ROWS", "rows_of_a_function"])
def test_a_bare_class_trains_on_rows_of_an_iterable(module, source):
    section = EnvironmentConfig(use=f"{module}:Guess", tasks=f"{module}:{source}")
    tasks = [task for split in Split for task in load_tasks("mine", section, split)]
    assert {task.id for task in tasks} == {row["id"] for row in ROWS}
    assert {task.environment for task in tasks} == {f"{module}:Guess"}
    assert {task.grader for task in tasks} == {OWN_REWARD}
    assert all(task.data == {"secret": int(task.id.split("/")[1])} for task in tasks)
    assert len({task.seed for task in tasks}) == 40


def test_a_bare_class_needs_tasks(module):
    with pytest.raises(ValueError, match="no task: name some with `tasks`"):
        load_tasks("mine", EnvironmentConfig(use=f"{module}:Guess"), Split.TRAIN)


def test_an_iterable_that_raises_is_one_line(module):
    section = EnvironmentConfig(use=f"{module}:Guess", tasks=f"{module}:raise_an_error")
    with pytest.raises(ValueError, match="cannot be made: KeyError: 'corpus'"):
        load_tasks("mine", section, Split.TRAIN)


def test_rows_of_a_spec_are_split_by_hash_and_a_broken_one_is_named():
    spec = EnvironmentSpec(name="a", environment=Guess, tasks=ROWS, grader="g:grade")
    train, held_out = (list_tasks(spec, EnvironmentConfig(), split) for split in Split)
    assert len(train) + len(held_out) == 40
    assert train[0].grader == "g:grade"
    broken = EnvironmentSpec(name="a", environment=Guess, tasks=[*ROWS, 7])
    with pytest.raises(ValueError, match="environment 'a': row 40: not a JSON object"):
        list_tasks(broken, EnvironmentConfig(), Split.TRAIN)
    twice = EnvironmentSpec(name="a", environment=Guess, tasks=[*ROWS, ROWS[3]])
    with pytest.raises(ValueError, match="task id 'guess/3' is given twice"):
        list_tasks(twice, EnvironmentConfig(), Split.TRAIN)


def test_a_row_without_an_id_has_the_same_one_wherever_it_stands():
    first, again = (to_task({"secret": 3}, "guess:Guess", OWN_REWARD) for _ in range(2))
    assert first == again
    assert first.id.startswith("Guess/")
    assert first.id != to_task({"secret": 4}, "guess:Guess", OWN_REWARD).id


@pytest.mark.parametrize("form", ["folder", "tasks.parquet", "tasks.json"])
def test_tasks_come_from_a_dataset(module, tmp_path, form):
    import datasets

    dataset = datasets.Dataset.from_list(ROWS)
    path = tmp_path / form
    if form == "folder":
        dataset.save_to_disk(str(path))
    elif form.endswith("parquet"):
        dataset.to_parquet(str(path))
    else:
        dataset.to_json(str(path))
    section = EnvironmentConfig(use=f"{module}:Guess", tasks=str(path))
    tasks = [task for split in Split for task in load_tasks("mine", section, split)]
    assert sorted(task.data["secret"] for task in tasks) == list(range(40))


def test_a_file_that_is_no_dataset_is_one_line(module, tmp_path):
    (tmp_path / "tasks.parquet").write_bytes(b"junk")
    section = EnvironmentConfig(use=f"{module}:Guess", tasks=str(tmp_path / "tasks.parquet"))
    with pytest.raises(ValueError, match="cannot read the tasks") as caught:
        load_tasks("mine", section, Split.TRAIN)
    assert "\n" not in str(caught.value)
