"""Recorded trajectories for a person: a list, or one trajectory turn by turn.

Takes a run folder and a selection, returns what Rich can print (and plain values for `--json`).
The tokens are shown as they were, special tokens included: what the policy wrote in green, tool
replies and template dim.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Group as RichGroup, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from rl.run import Run
from rollout.tokenizer import Tokenizer
from rollout.trajectory import Segment, Source, Trajectory, Turn
from rollout.trajectory_store import iterate_groups

_STYLES = {
    Source.TEMPLATE: "dim",
    Source.PROMPT: "default",
    Source.POLICY: "bold green",
    Source.SUB_AGENT: "bold green",
    Source.MASKED_SUB_AGENT: "green",
    Source.TOOL: "dim cyan",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which trajectories of a run are meant; every condition must hold."""

    step: int | None = None
    """Those of update N, and of an evaluation after update N."""
    environment: str | None = None
    """A section of the run's configuration, or the address of an environment."""
    trajectory: str | None = None
    """The id, or its beginning."""
    is_failed_only: bool = False
    """Those that did not get the full reward, and those without a score."""

    def accepts(self, trajectory: Trajectory) -> bool:
        """Whether a trajectory is meant; `step` and `environment` are not looked at."""
        return trajectory.id.startswith(self.trajectory or "") and not (
            self.is_failed_only and trajectory.reward == 1.0
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A trajectory and the file of the run folder that holds it."""

    file: str
    """`step-0003` or `evaluation-0000`."""
    trajectory: Trajectory


def select_trajectories(run: Run, selection: Selection) -> list[Recorded]:
    """Read the trajectories that are meant, in the order of recording.

    Raises:
        ValueError: nothing was recorded, or nothing fits the selection.
    """
    files = list(_files(run.trajectories_folder))
    if not files:
        raise ValueError(f"{run.folder} holds no trajectories yet")
    if selection.step is not None:
        last = _step_of(files[-1])
        files = [file for file in files if _step_of(file) == selection.step]
        if not files:
            raise ValueError(f"{run.folder} has no step {selection.step}: the last is {last}")
    addresses = _addresses(run, selection.environment)
    found = [
        Recorded(file=file.stem, trajectory=trajectory)
        for file in files
        for group in iterate_groups(file)
        for trajectory in group.trajectories
        if selection.accepts(trajectory)
        and (not addresses or trajectory.episode.task.environment in addresses)
    ]
    if not found:
        raise ValueError(
            f"{run.folder} has no such trajectory: `limosa show {run.folder}` lists all"
        )
    return found


def _addresses(run: Run, name: str | None) -> set[str]:
    """What the tasks of an environment may call it; empty where none is asked for."""
    if name is None:
        return set()
    section = run.config.environments.get(name)
    return {name, section.use} if section is not None and section.use else {name}


def _files(folder: Path) -> Iterator[Path]:
    """The files in order of time: the evaluation after N updates follows step N."""
    yield from sorted(
        folder.glob("*-*.jsonl"), key=lambda file: (_step_of(file), file.stem.startswith("eval"))
    )


def _step_of(file: Path) -> int:
    return int(file.stem.rpartition("-")[2])


def outcome_text(trajectory: Trajectory) -> Text:
    """Say the outcome in a few words, coloured by how good it is."""
    invalid = trajectory.invalid
    if invalid is not None:
        return Text(f"invalid: {invalid.reason} ({invalid.blame})", style="yellow")
    reward = trajectory.reward
    style = "green" if reward == 1.0 else "red" if reward == 0.0 else "default"
    return Text(f"{reward:.2f}", style=style)


def render_list(recorded: Sequence[Recorded]) -> RenderableType:
    """Render one row per trajectory."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("recorded in", "trajectory", "turns", "tokens", "stop", "reward"):
        table.add_column(title, no_wrap=title == "trajectory")
    for item in recorded:
        trajectory = item.trajectory
        table.add_row(
            item.file,
            Text(_printable(trajectory.id)),
            str(len(trajectory.turns)),
            f"{trajectory.num_sampled}/{trajectory.num_tokens}",
            str(trajectory.episode.stop),
            outcome_text(trajectory),
        )
    return table


def render_trajectory(item: Recorded, tokenizer: Tokenizer) -> RenderableType:
    """Render a trajectory turn by turn, and its outcome below."""
    trajectory = item.trajectory
    parts: list[RenderableType] = [
        Rule(Text(f"{_printable(trajectory.id)}  {item.file}"), align="left")
    ]
    for index, segment in enumerate(trajectory.segments):
        if len(trajectory.segments) > 1:
            parts.append(Rule(f"segment {index}", align="left", style="dim"))
        turns = [turn for turn in trajectory.turns if turn.segment == index]
        parts += _render_segment(segment, turns, tokenizer)
    parts.append(Rule(style="dim"))
    parts.append(_render_end(trajectory))
    return RichGroup(*parts)


def _render_segment(
    segment: Segment, turns: Sequence[Turn], tokenizer: Tokenizer
) -> Iterator[RenderableType]:
    by_index = {turn.index: turn for turn in turns}
    for number in sorted({span.turn for span in segment.spans}):
        if number in by_index:
            yield Text(_turn_line(segment, by_index[number]), style="bold")
        text = Text()
        for span in segment.spans:
            if span.turn == number:
                spelled = tokenizer.decode_all(segment.token_ids[span.start : span.stop].tolist())
                text.append(_printable(spelled), style=_STYLES[span.source])
        yield text


def _turn_line(segment: Segment, turn: Turn) -> str:
    values = turn_values(segment, turn)
    return (
        f"turn {turn.index}: {values['tokens']} tokens, log-prob mean {values['logprob_mean']:.3f} "
        f"lowest {values['logprob_min']:.2f}, version {turn.span.policy_version}, "
        f"{turn.finish}, {turn.seconds:.2f} s"
    )


def _render_end(trajectory: Trajectory) -> Text:
    text = Text(f"stop: {trajectory.episode.stop}   reward: ")
    text.append_text(outcome_text(trajectory))
    for name, value in outcome_parts(trajectory).items():
        text.append(f"   {name} {value:g}", style="dim")
    detail = trajectory.invalid.detail if trajectory.invalid else trajectory.episode.error
    if detail:
        text.append(f"\n{_printable(detail)}", style="yellow")
    return text


def outcome_parts(trajectory: Trajectory) -> dict[str, float]:
    """Return the named parts of the reward; none where the outcome is Invalid."""
    return dict(getattr(trajectory.outcome, "parts", {}))


def turn_values(segment: Segment, turn: Turn) -> dict[str, float]:
    """Return the number of sampled tokens of a turn and their log-probs (nats): mean, lowest."""
    logprobs = segment.behavior_logprobs[turn.span.start : turn.span.stop]
    return {
        "turn": turn.index,
        "tokens": len(logprobs),
        "logprob_mean": float(np.mean(logprobs)),
        "logprob_min": float(np.min(logprobs)),
    }


def trajectory_values(item: Recorded, is_whole: bool) -> dict[str, object]:
    """Return a trajectory as plain values for `--json`; `is_whole` adds messages and turns."""
    trajectory = item.trajectory
    invalid = trajectory.invalid
    values: dict[str, object] = {
        "id": trajectory.id,
        "file": item.file,
        "environment": trajectory.episode.task.environment,
        "stop": str(trajectory.episode.stop),
        "reward": trajectory.reward,
        "parts": outcome_parts(trajectory),
        "invalid": invalid.reason if invalid else None,
        "num_turns": len(trajectory.turns),
        "num_tokens": trajectory.num_tokens,
        "num_sampled": trajectory.num_sampled,
    }
    if is_whole:
        values["messages"] = [
            {
                "role": str(message.role),
                "text": message.text,
                "calls": [[call.name, dict(call.arguments)] for call in message.tool_calls],
            }
            for message in trajectory.episode.messages
        ]
        values["turns"] = [
            turn_values(trajectory.segments[turn.segment], turn) for turn in trajectory.turns
        ]
    return values


def _printable(text: str) -> str:
    """Spell out control characters: a policy must not be able to steer the reader's terminal."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )
