"""Tasks: splits by hash, JSONL files, and one line for whatever is wrong."""

import json

import pytest

from envs.config import EnvironmentConfig
from envs.environment import EnvironmentSpec, Split
from envs.task import Task
from envs.task_sets import HELD_OUT_SHARE, load_tasks, make_tasks, read_tasks, split_of


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
        (make_line(id=7), ":2: field 'id' is missing or no text"),
        (make_line(grader=""), ":2: task 'a/1': grader is empty"),
        (make_line(data=[]), ":2: field 'data' is no JSON object"),
        (make_line(seed="x"), ":2: field 'seed' is no integer"),
        (make_line(id="first"), "task id 'first' is given twice"),
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
