import dataclasses
import io

import numpy as np
import pytest
from rich.console import Console

from envs.messages import Message, Role
from rl.config_loader import load_config
from rl.run import Run
from rl.trajectory_view import (
    Selection,
    render_list,
    render_trajectory,
    select_trajectories,
    trajectory_values,
)
from rollout.tokenizer import Tokenizer
from rollout.trajectory import Group, Segment, Source, TokenSpan, Turn


def text_of(renderable, is_terminal=False):
    stream = io.StringIO()
    colors = "standard" if is_terminal else None
    console = Console(file=stream, width=120, force_terminal=is_terminal, color_system=colors)
    console.print(renderable)
    return stream.getvalue()


@pytest.fixture
def tokenizer(checkpoint):
    return Tokenizer.load(checkpoint)


@pytest.fixture
def run(work_folder, build_group):
    run = Run.create(load_config("run.toml"))
    evaluated = build_group([0.0], name="held").trajectories[0]
    run.record_evaluation(0, {}, [evaluated])
    run.record_step(1, {}, [build_group([1.0, 0.0, None], name="a")])
    run.record_step(2, {}, [build_group([1.0, 0.5], name="b", environment="other")])
    run.record_evaluation(2, {}, [evaluated])
    return run


def ids(run, **conditions):
    return [
        (item.file, item.trajectory.id)
        for item in select_trajectories(run, Selection(**conditions))
    ]


def test_all_are_listed_in_the_order_of_time(run):
    assert [file for file, _ in ids(run)] == [
        "evaluation-0000", "step-0001", "step-0001", "step-0001",
        "step-0002", "step-0002", "evaluation-0002",
    ]  # fmt: skip


def test_every_condition_selects(run):
    assert ids(run, step=1, is_failed_only=True) == [
        ("step-0001", "a#1@0"),
        ("step-0001", "a#2@0"),
    ]
    assert {name for _, name in ids(run, environment="other")} == {"b#0@0", "b#1@0"}
    assert ids(run, trajectory="b#1") == [("step-0002", "b#1@0")]
    assert len(ids(run, trajectory="held")) == 2


def test_an_environment_goes_by_the_name_of_its_section(run, build_group):
    run.record_step(3, {}, [build_group([1.0], name="c", environment="echo_world:SPEC")])
    for name in ("echo", "echo_world:SPEC"):
        assert ids(run, environment=name) == [("step-0003", "c#0@0")]


def test_nothing_selected_is_an_error_of_one_line(run, work_folder):
    with pytest.raises(ValueError, match="no step 9: the last is 2"):
        select_trajectories(run, Selection(step=9))
    with pytest.raises(ValueError, match="no such trajectory"):
        select_trajectories(run, Selection(trajectory="x"))
    with pytest.raises(ValueError, match="no trajectories yet"):
        select_trajectories(Run.create(run.config), Selection())


def test_the_list_says_reward_and_reason(run):
    text = text_of(render_list(select_trajectories(run, Selection())))
    assert "a#0@0" in text
    assert "1.00" in text
    assert "invalid: sandbox_failed (infrastructure)" in text


def two_turns(tokenizer, trajectory, policy_text="say(word1)"):
    """A trajectory of two turns whose texts are known."""
    pieces = [
        (Source.PROMPT, 0, "say word1"),
        (Source.POLICY, 0, policy_text),
        (Source.TOOL, 1, "heard"),
        (Source.POLICY, 1, "done"),
    ]
    token_ids, spans, logprobs = [], [], []
    for source, turn, text in pieces:
        encoded = tokenizer.encode(text)
        start = len(token_ids)
        token_ids += encoded
        spans.append(
            TokenSpan(
                start=start, stop=len(token_ids), source=source, turn=turn, policy_version=turn
            )
        )
        logprobs += [-0.5 if source is Source.POLICY else 0.0] * len(encoded)
    segment = Segment(
        token_ids=np.array(token_ids, np.int32),
        spans=tuple(spans),
        behavior_logprobs=np.array(logprobs, np.float32),
    )
    turns = tuple(
        Turn(
            index=span.turn,
            action=Message(role=Role.POLICY, text="x"),
            span=span,
            segment=0,
            finish="stop",
            seconds=0.25,
        )
        for span in spans
        if span.source is Source.POLICY
    )
    return dataclasses.replace(trajectory, segments=(segment,), turns=turns)


@pytest.fixture
def shown(run, tokenizer, build_group):
    """What is printed of a trajectory with the given text of the policy."""

    def show(policy_text="say(word1)", is_terminal=False):
        trajectory = two_turns(tokenizer, build_group([1.0]).trajectories[0], policy_text)
        group = Group(id="g", task=trajectory.episode.task, trajectories=(trajectory,))
        step = 3 + len(list(run.trajectories_folder.glob("step-*")))
        run.record_step(step, {}, [group])
        (item,) = select_trajectories(run, Selection(step=step))
        return text_of(render_trajectory(item, tokenizer), is_terminal), item

    return show


def test_a_trajectory_is_printed_turn_by_turn_with_its_outcome(shown):
    text, item = shown()
    at = [text.index(part) for part in ("turn 0:", "say(word1)", "turn 1:", "heard", "done")]
    assert at == sorted(at)
    assert "log-prob mean -0.500 lowest -0.50, version 1, stop, 0.25 s" in text
    assert "stop: finished   reward: 1.00" in text
    values = trajectory_values(item, is_whole=True)
    assert values["reward"] == 1.0
    assert [turn["logprob_mean"] for turn in values["turns"]] == [-0.5, -0.5]


def test_what_the_policy_wrote_is_green_and_replies_are_dim(shown):
    text, _ = shown(is_terminal=True)
    assert "\x1b[1;32m say(word1)" in text
    assert "\x1b[2;36m heard" in text


def test_a_policy_cannot_steer_the_terminal(shown):
    text, _ = shown("\x1b[2Jgone")
    assert "\x1b" not in text
    assert "\\x1b[2Jgone" in text
