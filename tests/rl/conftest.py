"""Builders of small trajectories, and a working folder with all that a small run needs."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from envs.episode import Episode, StopReason
from envs.task import Task
from model import presets
from rewards.reward import Blame, Invalid, Scored
from rl.turn_grid import TurnGrid
from rollout.tokenizer import Tokenizer
from rollout.trajectory import Group, Segment, Source, TokenSpan, Trajectory

ORACLES = Path(__file__).parent / "oracles"
SegmentBuilder = Callable[..., Segment]
GroupBuilder = Callable[..., Group]


def _build_segment(
    token_ids: Sequence[int] = (5, 6, 7, 8),
    prompt: int = 2,
    versions: Sequence[int] = (0,),
    logprob: float = -1.0,
    experts: int | None = None,
) -> Segment:
    """One prompt of `prompt` tokens, then POLICY tokens, split evenly over `versions`."""
    length = len(token_ids)
    spans = [
        TokenSpan(start=0, stop=prompt, source=Source.PROMPT, turn=0, policy_version=versions[0])
    ]
    bounds = np.linspace(prompt, length, len(versions) + 1).astype(int)
    for turn, (version, start, stop) in enumerate(
        zip(versions, bounds[:-1], bounds[1:], strict=True)
    ):
        spans.append(
            TokenSpan(
                start=int(start),
                stop=int(stop),
                source=Source.POLICY,
                turn=turn,
                policy_version=version,
            )
        )
    logprobs = np.zeros(length, dtype=np.float32)
    logprobs[prompt:] = logprob
    expert_ids = None if experts is None else np.full((length, 1, 2), experts, dtype=np.int16)
    return Segment(
        token_ids=np.array(token_ids, dtype=np.int32),
        spans=tuple(spans),
        behavior_logprobs=logprobs,
        expert_ids=expert_ids,
    )


def _build_group(
    rewards: Sequence[float | None],
    name: str = "task",
    environment: str = "toy",
    segments: Sequence[Segment] | None = None,
) -> Group:
    """One sibling for each reward; None is an Invalid outcome."""
    task = Task(id=name, environment=environment, grader="toy")
    members = []
    for index, reward in enumerate(rewards):
        outcome = (
            Invalid(reason="sandbox_failed", blame=Blame.INFRASTRUCTURE)
            if reward is None
            else Scored(value=reward)
        )
        members.append(
            Trajectory(
                id=f"{name}#{index}@0",
                episode=Episode(task=task, messages=(), stop=StopReason.FINISHED),
                segments=(segments[index] if segments else _build_segment(),),
                turns=(),
                outcome=outcome,
            )
        )
    return Group(id=name, task=task, trajectories=tuple(members))


# Builders are scoped to the session for hypothesis, which runs a test many times in one fixture.
@pytest.fixture(scope="session")
def build_segment() -> SegmentBuilder:
    return _build_segment


@pytest.fixture(scope="session")
def build_group() -> GroupBuilder:
    return _build_group


@pytest.fixture(scope="session")
def recorded() -> Callable[[str, str], dict]:
    """Read what a foreign package answered to a case: `inputs` and `results`."""
    return lambda package, case: json.loads((ORACLES / f"{package}.json").read_text())["cases"][
        case
    ]


def _build_grid(
    seed: int,
    *,
    trajectories: int = 6,
    turns: int = 7,
    groups: int = 2,
    states: int = 4,
    outcome_only: bool = False,
) -> TurnGrid:
    """A grid of random lengths, rewards, values and states; `groups` alternate along the rows."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, turns + 1, size=trajectories)
    mask = np.arange(turns) < lengths[:, None]
    rewards = np.where(mask, random.normal(size=mask.shape), 0.0)
    if outcome_only:
        rewards = np.zeros(mask.shape)
        rewards[np.arange(trajectories), lengths - 1] = random.integers(0, 2, size=trajectories)
    return TurnGrid(
        rewards=rewards,
        lengths=lengths,
        groups=np.arange(trajectories) % groups,
        final_values=np.zeros(trajectories) if outcome_only else random.normal(size=trajectories),
        values=random.normal(size=mask.shape),
        states=random.integers(0, states, size=mask.shape),
    )


@pytest.fixture(scope="session")
def build_grid() -> Callable[..., TurnGrid]:
    return _build_grid


ECHO_WORLD = """
from envs.environment import EnvironmentSpec, Split
from envs.messages import Message, Role, ToolCall
from envs.task import Task
from envs.task_sets import split_of
from rewards.reward import Scored


class Echo:
    def reset(self, word: str) -> str:
        if word == "broken":
            raise RuntimeError("the world is down")
        self.said = ""
        return f"say {word}"

    def say(self, text: str) -> str:
        \"\"\"Say something.

        Args:
            text: What is said.
        \"\"\"
        self.said = text
        return "heard"

    def done(self) -> bool:
        return bool(self.said)

    def artifacts(self) -> dict:
        return {"said": self.said}


def tasks(split: Split, count: int = 40) -> list[Task]:
    every = [
        Task(id=f"echo/{i}", environment="echo_world:SPEC", grader="echo_world:grade",
             data={"word": f"word{i}"}, reference={"word": f"word{i}"})
        for i in range(count)
    ]
    return [task for task in every if split_of(task.id) is split]


def expert(task, random):
    call = ToolCall(name="say", arguments={"text": task.reference["word"]})
    return lambda messages: Message(role=Role.POLICY, tool_calls=(call,))


async def grade(episode) -> Scored:
    said = episode.artifacts.get("said")
    return Scored(value=float(said == episode.task.reference["word"]))


SPEC = EnvironmentSpec(name="echo", environment=Echo, tasks=tasks, expert=expert)
"""


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A folder with the files of a checkpoint, small enough to make anew for every test."""
    folder = tmp_path / "checkpoint"
    tokenizer = Tokenizer.train(["say word1", "heard", "say(text)"], 300)
    tokenizer.save(folder)
    shape = presets.get_preset("tiny", 300)
    (folder / "config.json").write_text(json.dumps(shape.to_json()))
    weights = {"model.embed_tokens.weight": np.zeros((300, shape.hidden_size), np.float32)}
    for layer in range(shape.num_hidden_layers):
        weights[f"model.layers.{layer}.input_layernorm.weight"] = np.ones(4, np.float32)
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.fixture
def work_folder(tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: `run.toml`, a checkpoint, and an environment in `echo_world.py`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "echo_world", raising=False)
    (tmp_path / "echo_world.py").write_text(ECHO_WORLD)
    (tmp_path / "run.toml").write_text(
        '[model]\ncheckpoint = "checkpoint"\n\n[environments.echo]\nuse = "echo_world:SPEC"\n'
    )
    return tmp_path
