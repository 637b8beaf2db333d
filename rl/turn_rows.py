"""From trajectories to a grid of turns, and from advantages per turn back to tokens.

A turn is what the policy wrote between two observations, in whatever segments and under whatever
versions its tokens lie; turns count on over the segments of a trajectory, so credit does not know
where a history was rewritten. A turn that left no token is no turn: what it earned is added to the
turn before it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Float64, Int64

from rewards.reward import Scored
from rl.turn_grid import TurnGrid
from rollout.trajectory import Segment, Source, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStart:
    """Where the policy begins to write a turn."""

    turn: int
    """Index of the turn in the episode."""
    segment: int
    position: int
    """Of its first token; the policy has seen all tokens before it."""
    observed_from: int
    """Where what is new to the policy begins: behind its last turn, or at the segment's start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnValues:
    """What a critic expects before each turn of a trajectory, and after the last."""

    before: Float64[np.ndarray, " n"]
    after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A trajectory that counts, with the number of its group."""

    trajectory: Trajectory
    group: int
    reward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GridOptions:
    """What a grid is to hold beside outcomes."""

    with_states: bool = False
    turn_reward_weight: float = 0.0
    """Of the rewards that the grader gave to turns; the outcome's is 1."""
    values: Mapping[str, TurnValues] | None = None
    """The critic's, by the trajectory's id."""
    values_truncated: bool = False
    """An episode that a budget cut off is worth what the critic expected of its rest, and not the
    reward that it was given."""


def turn_starts(trajectory: Trajectory) -> list[TurnStart]:
    """Find where the policy begins each of its turns, in order; turns without tokens are not."""
    starts: dict[int, TurnStart] = {}
    for number, segment in enumerate(trajectory.segments):
        behind = 0
        for span in segment.spans:
            if span.source is not Source.POLICY:
                continue
            starts.setdefault(
                span.turn,
                TurnStart(
                    turn=span.turn, segment=number, position=span.start, observed_from=behind
                ),
            )
            behind = span.stop
    return [starts[turn] for turn in sorted(starts)]


def build_grid(rows: Sequence[Row], options: GridOptions) -> TurnGrid:
    """Lay trajectories out as rows of turns.

    Args:
        rows: At least one.
        options: What else the grid holds.

    Raises:
        ValueError: a reward or a value is not finite; names the trajectory.
    """
    starts = [turn_starts(row.trajectory) for row in rows]
    lengths = np.array([max(1, len(turns)) for turns in starts])
    shape = (len(rows), int(lengths.max()))
    rewards, final_values = np.zeros(shape), np.zeros(len(rows))
    values = None if options.values is None else np.zeros(shape)
    for place, (row, turns) in enumerate(zip(rows, starts, strict=True)):
        rewards[place, : lengths[place]] = _turn_rewards(row, turns, options.turn_reward_weight)
        if values is None or options.values is None:
            rewards[place, lengths[place] - 1] += row.reward
            continue
        expected = options.values[row.trajectory.id]
        values[place, : len(expected.before)] = expected.before
        if options.values_truncated and row.trajectory.episode.stop.is_truncation:
            final_values[place] = expected.after
        else:
            rewards[place, lengths[place] - 1] += row.reward
    _require_finite(rows, rewards, final_values, values)
    return TurnGrid(
        rewards=rewards,
        lengths=lengths,
        groups=np.array([row.group for row in rows]),
        final_values=final_values,
        values=values,
        states=_number_states(rows, starts, shape) if options.with_states else None,
    )


def spread(
    trajectory: Trajectory, advantages: Float64[np.ndarray, " n"]
) -> Iterator[tuple[Segment, Float32[np.ndarray, " T"]]]:
    """Give every token that the policy wrote the advantage of its turn.

    The critic is asked at turn boundaries alone, so the tokens of a turn share what it expects and
    get the same advantage: turn-boundary GAE (arXiv 2610.22192) with V_t = V(s_h) inside a turn.

    Yields:
        Each segment in which the policy wrote anything, with its tokens' advantages.
    """
    turns = [start.turn for start in turn_starts(trajectory)]
    for segment in trajectory.segments:
        if segment.loss_mask.any():
            columns = np.searchsorted(turns, segment.turn_of_token)
            of_token = advantages[np.minimum(columns, len(turns) - 1)].astype(np.float32)
            yield segment, np.where(segment.loss_mask, of_token, np.float32(0.0))


def _turn_rewards(row: Row, turns: Sequence[TurnStart], weight: float) -> np.ndarray:
    """Weigh what the grader gave to each turn; a turn without tokens hands it to the one before."""
    earned = np.zeros(max(1, len(turns)))
    outcome = row.trajectory.outcome
    given = outcome.turns if isinstance(outcome, Scored) else ()
    if not weight or not given:
        return earned
    numbers = [start.turn for start in turns] or [0]
    for turn, reward in enumerate(given):
        column = max(0, int(np.searchsorted(numbers, turn, side="right")) - 1)
        earned[column] += weight * reward
    return earned


def _number_states(
    rows: Sequence[Row], starts: Sequence[Sequence[TurnStart]], shape: tuple[int, int]
) -> Int64[np.ndarray, "I H"]:
    """Number what the policy newly saw before each turn: equal text, equal number."""
    numbers: dict[bytes, int] = {}
    states = np.zeros(shape, dtype=np.int64)
    for place, (row, turns) in enumerate(zip(rows, starts, strict=True)):
        for column, start in enumerate(turns):
            token_ids = row.trajectory.segments[start.segment].token_ids
            seen = token_ids[start.observed_from : start.position].tobytes()
            states[place, column] = numbers.setdefault(seen, len(numbers))
    return states


def _require_finite(
    rows: Sequence[Row],
    rewards: Float64[np.ndarray, "I H"],
    final_values: Float64[np.ndarray, " I"],
    values: Float64[np.ndarray, "I H"] | None,
) -> None:
    for place, row in enumerate(rows):
        numbers = [rewards[place], final_values[place : place + 1]]
        numbers += [] if values is None else [values[place]]
        if not all(np.isfinite(array).all() for array in numbers):
            name = row.trajectory.id
            raise ValueError(f"trajectory {name!r} has a reward or a value that is not finite")
