import dataclasses
import json
import logging

import numpy as np
import pytest

from envs.episode import Episode, StopReason
from envs.messages import Message, Role, ToolCall
from envs.task import Task
from rewards.reward import Blame, Invalid, Scored
from rollout.sampling_mask import SamplingMask
from rollout.trajectory import Group, Segment, Source, TokenSpan, Trajectory, Turn
from rollout.trajectory_store import StoreError, append_group, read_groups

TASK = Task(
    id="t/1",
    environment="t",
    grader="g",
    data={"prompt": "caf\u00e9 \u2028", "tests": [[1, 2.5], None, True]},
    reference={"answer": {"x": 1}},
    seed=7,
)


def make_trajectory(outcome, sibling=0, with_experts=True):
    rng = np.random.default_rng(sibling)
    spans = (
        TokenSpan(start=0, stop=3, source=Source.PROMPT, turn=0, policy_version=2),
        TokenSpan(start=3, stop=5, source=Source.POLICY, turn=0, policy_version=3),
    )
    logprobs = np.array([0, 0, 0, -0.1, -1e-7], dtype=np.float32)
    segment = Segment(
        token_ids=np.array([5, 6, 7, 1000, 7], dtype=np.int32),
        spans=spans,
        behavior_logprobs=logprobs,
        expert_ids=rng.integers(-1, 8, (5, 3, 2)).astype(np.int16) if with_experts else None,
        sampling_mask=SamplingMask.of_lists([[], [], [], [1000, 3], [7]]) if with_experts else None,
    )
    call = ToolCall(name="put", arguments={"number": 3, "items": ["a", {"b": 1.5}]})
    action = Message(role=Role.POLICY, text="so", tool_calls=(call,))
    messages = (
        Message(role=Role.USER, text="go\n"),
        action,
        Message(role=Role.TOOL, text="\x00done", tool_name="put"),
    )
    return Trajectory(
        id=f"t/1#{sibling}@0",
        episode=Episode(
            task=TASK,
            messages=messages,
            stop=StopReason.FINISHED,
            artifacts={"code": "x = 1"},
            error=None,
        ),
        segments=(segment,),
        turns=(
            Turn(index=0, action=action, span=spans[1], segment=0, finish="stop", seconds=0.25),
        ),
        outcome=outcome,
        computed_tokens=4,
        publish_recomputed_tokens=2,
    )


def make_group(name="t/1@0"):
    invalid = Invalid(reason="sandbox_failed", blame=Blame.INFRASTRUCTURE, detail="no bwrap")
    members = (
        make_trajectory(Scored(value=0.5, parts={"tests": 0.5}, turns=(0.25,)), sibling=0),
        make_trajectory(invalid, sibling=1, with_experts=False),
    )
    return Group(id=name, task=TASK, trajectories=members)


def assert_same(left, right):
    """Compare field by field, types included, down to the arrays."""
    assert type(left) is type(right)
    if isinstance(left, np.ndarray):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
    elif dataclasses.is_dataclass(left):
        for field in dataclasses.fields(left):
            assert_same(getattr(left, field.name), getattr(right, field.name))
    elif isinstance(left, tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    else:
        assert left == right


def test_what_is_appended_reads_back_identical(tmp_path):
    path = tmp_path / "trajectories" / "step-0001.jsonl"
    groups = [make_group("a"), make_group("b")]
    for group in groups:
        append_group(path, group)
    for read, group in zip(read_groups(path), groups, strict=True):
        assert_same(read, group)
        assert read.trajectories[0].segments[0].loss_mask.tolist() == [False] * 3 + [True] * 2


def test_arrays_that_were_read_can_be_written_to(tmp_path):
    append_group(tmp_path / "groups.jsonl", make_group())
    (group,) = read_groups(tmp_path / "groups.jsonl")
    group.trajectories[0].segments[0].token_ids[0] = 1


@pytest.mark.parametrize("num_bytes", [1, 40, 700])
def test_a_torn_last_line_is_reported_and_skipped(tmp_path, caplog, num_bytes):
    path = tmp_path / "groups.jsonl"
    append_group(path, make_group("a"))
    append_group(path, make_group("b"))
    path.write_bytes(path.read_bytes()[:-num_bytes])
    if num_bytes > 1:  # without its newline alone the line is whole
        with caplog.at_level(logging.WARNING):
            assert [group.id for group in read_groups(path)] == ["a"]
        assert "groups.jsonl:2: torn line skipped" in caplog.text
    append_group(path, make_group("c"))
    ids = [group.id for group in read_groups(path)]
    assert ids == (["a", "c"] if num_bytes > 1 else ["a", "b", "c"])


def test_appending_never_changes_what_is_there(tmp_path):
    path = tmp_path / "groups.jsonl"
    append_group(path, make_group("a"))
    before = path.read_bytes()
    append_group(path, make_group("b"))
    assert path.read_bytes().startswith(before)


def test_another_schema_and_a_damaged_group_are_one_clear_line(tmp_path):
    path = tmp_path / "groups.jsonl"
    append_group(path, make_group())
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "schema": 99}) + "\n")
    with pytest.raises(StoreError, match=r"groups\.jsonl:1: schema 99, this version reads 1"):
        read_groups(path)
    del record["trajectories"][0]["stop"]
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(StoreError, match=r"groups\.jsonl:1: damaged group"):
        read_groups(path)
    with pytest.raises(StoreError, match="no such file"):
        read_groups(tmp_path / "other.jsonl")
