"""The processes of the benchmark, each with one way in which credit gets lost.

    Ladder             every turn counts a little; most of the outcome is chance
    KeyDoor            four turns decide everything; the others are distractions
    KeyDoor(e)         the same, and the critic errs: AR(1) over turns, standard deviation e
    DelayedReveal(D)   KeyDoor, but a failure shows to the critic D turns late; also (D, e)
    Recover            a mistake kills or can be repaired: a low value need not be the end
    AliasMaze          turns that look the same differ by what the agent carries
    VarLen(x)          the agent decides when to stop; x ties success to the work done
    Compact(S)         KeyDoor over S segments: the turn that closes one may lose the key
    Stale(x)           KeyDoor, sampled by another policy: noise of size x on the logits

All start from the uniform policy, and their odds of success from there depend little on H.
"""

import dataclasses
import re
from collections.abc import Callable

import numpy as np
from jaxtyping import Float64, Int64

from rl.credit_bench.layered_process import LayeredProcess

NUM_DOORS = 4
NUM_CONTEXTS = 8
NUM_LADDER_TYPES = 16
LADDER_FLIP = 0.1
"""Odds that a step of the ladder goes the other way."""
RISKY_TURNS = 8
DEADLY = 0.3
"""Odds that a mistake of Recover is the last one."""
REPAIR_TURNS = 3
MAZE_CELLS = 8
WORK_UNITS = 8


def build_environment(name: str, horizon: int) -> LayeredProcess:
    """Build a process by its name, such as `KeyDoor` or `DelayedReveal(60, 0.1)`.

    Raises:
        ValueError: no such environment, or a horizon below 10.
    """
    match = re.fullmatch(r"(\w+)(?:\(([^()]+)\))?", name)
    if match is None or match[1] not in _BUILDERS:
        raise ValueError(f"no environment {name}: there are {', '.join(_BUILDERS)}")
    if horizon < 10:
        raise ValueError(f"{name} needs at least 10 turns, not {horizon}")
    build, defaults = _BUILDERS[match[1]]
    given = [float(number) for number in match[2].split(",")] if match[2] else []
    if len(given) > len(defaults):
        raise ValueError(f"{name}: {match[1]} takes {len(defaults)} numbers")
    return dataclasses.replace(build(horizon, *given, *defaults[len(given) :]), name=name)


def door_turns(horizon: int) -> Int64[np.ndarray, " M"]:
    """Place the doors of KeyDoor.

    A later door weighs twice the one before it. They lie so that the turn at which the outcome is
    settled has the mean of even settling over all turns, and as much of it near the start: what is
    known in closed form for even settling holds here.
    """
    return (horizon * np.array([0.05, 0.15, 0.28, 0.75])).astype(np.int64)


def _key_door(horizon: int, noise: float) -> LayeredProcess:
    return dataclasses.replace(_doors(horizon, delay=0), critic_noise=noise)


def _delayed_reveal(horizon: int, delay: float, noise: float) -> LayeredProcess:
    return dataclasses.replace(_doors(horizon, delay=int(delay)), critic_noise=noise)


def _stale(horizon: int, mismatch: float) -> LayeredProcess:
    return dataclasses.replace(_doors(horizon, delay=0), mismatch=mismatch)


def _compact(horizon: int, segments: float) -> LayeredProcess:
    """Let the turn that closes a segment lose the key by half if it is not written down."""
    process = _doors(horizon, delay=0)
    doors = set(door_turns(horizon).tolist())
    lost = process.num_states - 1
    successors = np.repeat(process.successors, 2, axis=-1)
    odds = np.broadcast_to(np.array([1.0, 0.0]), successors.shape).copy()
    for place in np.arange(1, int(segments)) * horizon // int(segments):
        turn = next(turn for turn in range(int(place), horizon) if turn not in doors)
        successors[turn, 0, 0] = (0, lost)
        odds[turn, 0, 0] = 0.5
    return dataclasses.replace(process, successors=successors, probabilities=odds)


def _doors(horizon: int, delay: int) -> LayeredProcess:
    """State 0: all well; state m: failed at door m; the last: the key was lost in between.

    Each door opens to action 1. A view is 0 until the failure shows, then the state.
    """
    doors = door_turns(horizon)
    states = NUM_DOORS + 2
    successors = np.broadcast_to(np.arange(states)[:, None, None], (horizon, states, 2, 1)).copy()
    successors[doors, 0, 0, 0] = np.arange(1, NUM_DOORS + 1)
    turns = np.arange(horizon)[:, None]
    failed_at = np.array([horizon, *doors, 0])
    shows = turns > failed_at + delay
    views = np.where(shows, np.arange(states), 0)
    passed = np.searchsorted(doors, turns) / NUM_DOORS
    return LayeredProcess(
        name="",
        initial=_certainly(0, states),
        successors=successors,
        probabilities=np.ones(successors.shape),
        success=_certainly(0, states),
        observations=np.broadcast_to(turns, (horizon, states)),
        views=views,
        anchors=turns * states + views,
        progress=np.where(views > 0, -0.5, passed),
        is_over=np.zeros(states, bool),
        num_contexts=NUM_CONTEXTS,
    )


def _ladder(horizon: int) -> LayeredProcess:
    """State k: steps gained. Action 1 gains one unless it flips; 16 types of turn take turns."""
    states = horizon + 1
    steps = np.arange(states)
    up = np.minimum(steps + 1, horizon)
    successors = np.stack([np.stack([steps, up], -1)] * 2, axis=1)
    flip = np.array([[1 - LADDER_FLIP, LADDER_FLIP], [LADDER_FLIP, 1 - LADDER_FLIP]])
    deviation = np.sqrt(horizon) / 2
    turns = np.arange(horizon)[:, None]
    everywhere = (horizon, states)
    return LayeredProcess(
        name="",
        initial=_certainly(0, states),
        successors=np.broadcast_to(successors, (horizon, *successors.shape)),
        probabilities=np.broadcast_to(flip, (*everywhere, 2, 2)),
        success=_sigmoid(1.5 * (steps - horizon / 2) / deviation),
        observations=np.broadcast_to(turns % NUM_LADDER_TYPES, everywhere),
        views=np.broadcast_to(steps, everywhere),
        anchors=turns * states + steps,
        progress=np.tanh((steps - turns / 2) / (2 * deviation)),
        is_over=np.zeros(states, bool),
    )


def _recover(horizon: int) -> LayeredProcess:
    """States 0 to 3: turns of repair that are due; state 4: dead. Action 1 is right everywhere."""
    dead = REPAIR_TURNS + 1
    states = dead + 1
    damage = np.arange(states)
    repaired = np.where(damage == dead, dead, np.maximum(damage - 1, 0))
    quiet = np.stack([np.stack([damage, damage], -1), np.stack([repaired, repaired], -1)], axis=1)
    successors = np.broadcast_to(quiet, (horizon, *quiet.shape)).copy()
    odds = np.broadcast_to(np.array([1.0, 0.0]), successors.shape).copy()
    risky = np.arange(RISKY_TURNS) * horizon // RISKY_TURNS
    successors[risky, :dead, 0] = (REPAIR_TURNS, dead)
    odds[risky, :dead, 0] = (1 - DEADLY, DEADLY)
    turns = np.arange(horizon)[:, None]
    return LayeredProcess(
        name="",
        initial=_certainly(0, states),
        successors=successors,
        probabilities=odds,
        success=_certainly(0, states),
        observations=np.broadcast_to(turns, (horizon, states)),
        views=np.broadcast_to(damage, (horizon, states)),
        anchors=turns * states + damage,
        progress=np.where(damage == dead, -1.0, 1 - damage / dead) + 0.0 * turns,
        is_over=np.zeros(states, bool),
        num_contexts=NUM_CONTEXTS,
    )


def _alias_maze(horizon: int) -> LayeredProcess:
    """Walk a ring: the tool lies in cell 0, the door it opens is opposite.

    State 2 * cell + (carries the tool); the last state: the door is open. Tool and door stick, the
    more the longer the episode, so that the odds of success depend little on H. Policy and critic
    remember what they carry; anchors compare what the cell looks like.
    """
    opened = 2 * MAZE_CELLS
    states = opened + 1
    ease = min(1.0, 12 / horizon)
    successors = np.full((states, 2, 2), opened)
    for cell in range(MAZE_CELLS):
        for carries in (0, 1):
            for action, step in enumerate((-1, 1)):
                reached = (cell + step) % MAZE_CELLS
                here = 2 * reached + carries
                wins = 2 * reached + 1 if reached == 0 else here
                if reached == MAZE_CELLS // 2 and carries:
                    wins = opened
                successors[2 * cell + carries, action] = (wins, here)
    numbers = np.arange(states)
    everywhere = (horizon, states)
    carried = np.where(numbers == opened, 1.0, numbers % 2 * 0.5)
    return LayeredProcess(
        name="",
        initial=_certainly(2 * (MAZE_CELLS // 4), states),
        successors=np.broadcast_to(successors, (horizon, *successors.shape)),
        probabilities=np.broadcast_to(np.array([ease, 1 - ease]), (*everywhere, 2, 2)),
        success=_certainly(opened, states),
        observations=np.broadcast_to(np.minimum(numbers, opened - 1), everywhere),
        views=np.broadcast_to(numbers, everywhere),
        anchors=np.broadcast_to(numbers // 2, everywhere),
        progress=np.broadcast_to(carried, everywhere),
        is_over=numbers == opened,
    )


def _var_len(horizon: int, tie: float) -> LayeredProcess:
    """State k: units of work done; state 9 + k: stopped with k. Action 1 asks to stop.

    Who has not stopped after H turns has failed. The odds of success once stopped rise with the
    work done if `tie` is positive, fall if it is negative.
    """
    units = WORK_UNITS + 1
    states = 2 * units
    work = np.arange(units)
    more = np.minimum(work + 1, WORK_UNITS)
    over = work + units
    running = np.stack([np.stack([more, work], -1), np.stack([over, work], -1)], axis=1)
    stopped = np.broadcast_to(over[:, None, None], (units, 2, 2))
    successors = np.concatenate([running, stopped])
    pace, consent = min(1.0, 2 * WORK_UNITS / horizon), min(1.0, 4 / horizon)
    odds = np.array([[pace, 1 - pace], [consent, 1 - consent]])
    everywhere = (horizon, states)
    numbers = np.arange(states)
    chances = _sigmoid(4 * tie * (work / WORK_UNITS - 0.5))
    return LayeredProcess(
        name="",
        initial=_certainly(0, states),
        successors=np.broadcast_to(successors, (horizon, *successors.shape)),
        probabilities=np.broadcast_to(odds, (*everywhere, 2, 2)),
        success=np.concatenate([np.zeros(units), chances]),
        observations=np.broadcast_to(numbers % units, everywhere),
        views=np.broadcast_to(numbers, everywhere),
        anchors=np.broadcast_to(numbers, everywhere),
        progress=np.broadcast_to(numbers % units / WORK_UNITS, everywhere),
        is_over=numbers >= units,
    )


_BUILDERS: dict[str, tuple[Callable[..., LayeredProcess], tuple[float, ...]]] = {
    "KeyDoor": (_key_door, (0.0,)),
    "Ladder": (_ladder, ()),
    "DelayedReveal": (_delayed_reveal, (20.0, 0.0)),
    "Recover": (_recover, ()),
    "AliasMaze": (_alias_maze, ()),
    "VarLen": (_var_len, (0.5,)),
    "Compact": (_compact, (4.0,)),
    "Stale": (_stale, (0.5,)),
}
"""Builder, and the numbers that stand in for those that are not given."""


def _certainly(state: int, states: int) -> Float64[np.ndarray, " S"]:
    odds = np.zeros(states)
    odds[state] = 1.0
    return odds


def _sigmoid(values: Float64[np.ndarray, " S"]) -> Float64[np.ndarray, " S"]:
    return 1 / (1 + np.exp(-values))
