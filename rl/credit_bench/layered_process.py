"""Finite decision processes of H turns, and episodes sampled from them.

A process has layers: at turn h the episode is in one of S states, the policy takes one of A
actions, and one of K successors follows. The outcome is a verifier's coin, thrown once, whose odds
depend on the state behind the last turn.

Who sees what is part of the process, for that is where credit goes wrong: the policy sees an
*observation*, the critic a *view*, a rule that compares equal states an *anchor*. Beside its state
each turn has a *context*, drawn at random, which changes nothing but is seen by critic and anchors:
the distractions that keep real states from ever being met twice.

Arrays that are the same at all turns are broadcast along H and take no memory.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float64, Int64


@dataclass(frozen=True, kw_only=True)
class LayeredProcess:
    """A decision process of at most H turns with one outcome in {0, 1}.

    Raises:
        ValueError: shapes disagree, or probabilities do not add up to 1.
    """

    name: str
    initial: Float64[np.ndarray, " S"]
    """Odds of the first state."""
    successors: Int64[np.ndarray, "H S A K"]
    probabilities: Float64[np.ndarray, "H S A K"]
    """Odds of each successor."""
    success: Float64[np.ndarray, " S"]
    """Odds that the verifier accepts the state behind the last turn."""
    observations: Int64[np.ndarray, "H S"]
    """What the policy sees: its row of logits."""
    views: Int64[np.ndarray, "H S"]
    """What the critic sees, together with h."""
    anchors: Int64[np.ndarray, "H S"]
    """What counts as the same state for a baseline over equal states."""
    progress: Float64[np.ndarray, "H S"]
    """How far things look, in [-1, 1], equal where views are equal: what a linear critic reads."""
    is_over: Bool[np.ndarray, " S"]
    """States that end the episode: no turn is taken in them and they lead to themselves."""
    num_contexts: int = 1
    """Contexts of a turn, equally likely."""
    mismatch: float = 0.0
    """Noise on the logits of the policy that samples, standard deviation; 0: the policy itself."""
    critic_noise: float = 0.0
    """Error of every critic that has been fit, on top of its own, standard deviation."""

    def __post_init__(self) -> None:
        horizon, states, actions, _ = self.successors.shape
        if self.probabilities.shape != self.successors.shape:
            raise ValueError(f"{self.name}: successors and their probabilities differ in shape")
        for array in (self.observations, self.views, self.anchors, self.progress):
            if array.shape != (horizon, states):
                raise ValueError(f"{self.name}: not {(horizon, states)}: {array.shape}")
        if actions < 2:
            raise ValueError(f"{self.name}: there is nothing to decide with {actions} action")
        for odds in (self.initial, self.probabilities):
            if (odds < 0).any() or not np.allclose(odds.sum(-1), 1.0):
                raise ValueError(f"{self.name}: probabilities do not add up to 1")

    @property
    def horizon(self) -> int:
        """H: most turns of an episode."""
        return self.successors.shape[0]

    @property
    def num_states(self) -> int:
        """S: states per layer."""
        return self.successors.shape[1]

    @property
    def num_actions(self) -> int:
        """A: actions in every state."""
        return self.successors.shape[2]

    @cached_property
    def num_observations(self) -> int:
        """O: rows of logits of a policy."""
        return int(self.observations.max()) + 1

    @cached_property
    def num_views(self) -> int:
        """Views that the critic can tell apart within a layer."""
        return int(self.views.max()) + 1


@dataclass(frozen=True, kw_only=True)
class Episodes:
    """I episodes of a process, sampled under one policy; zeros behind an episode's last turn."""

    states: Int64[np.ndarray, "I H"]
    """Before each turn."""
    actions: Int64[np.ndarray, "I H"]
    contexts: Int64[np.ndarray, "I H"]
    final_states: Int64[np.ndarray, " I"]
    lengths: Int64[np.ndarray, " I"]
    """Turns taken."""
    outcomes: Float64[np.ndarray, " I"]
    """What the verifier said: 0 or 1."""

    @cached_property
    def mask(self) -> Bool[np.ndarray, "I H"]:
        """True where a turn was taken."""
        return np.arange(self.states.shape[1]) < self.lengths[:, None]

    def select(self, rows: slice | Bool[np.ndarray, " I"]) -> "Episodes":
        """Return some of the episodes."""
        return Episodes(**{name: values[rows] for name, values in self.arrays().items()})

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name."""
        names = ("states", "actions", "contexts", "final_states", "lengths", "outcomes")
        return {name: getattr(self, name) for name in names}


def join(parts: list[Episodes]) -> Episodes:
    """Lay episodes of several batches one after another."""
    return Episodes(
        **{name: np.concatenate([p.arrays()[name] for p in parts]) for name in parts[0].arrays()}
    )


def softmax(logits: Float64[np.ndarray, "... A"]) -> Float64[np.ndarray, "... A"]:
    """Turn logits into probabilities."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def sample_episodes(
    process: LayeredProcess,
    policies: Float64[np.ndarray, "P O A"],
    count: int,
    generator: np.random.Generator,
) -> Episodes:
    """Play episodes, all at once, turn by turn.

    Args:
        process: What is played.
        policies: Odds of each action at each observation, of P policies.
        count: Episodes of each policy; those of one policy lie together.
        generator: Source of all chance.

    Returns:
        P * count episodes.
    """
    total = len(policies) * count
    first = _draw(np.broadcast_to(process.initial, (total, process.num_states)), generator)
    return play_on(process, policies, first, 0, generator)


def play_on(
    process: LayeredProcess,
    policies: Float64[np.ndarray, "P O A"],
    states: Int64[np.ndarray, " I"],
    turn: int,
    generator: np.random.Generator,
) -> Episodes:
    """Play episodes from given states before a given turn to their ends.

    Args:
        process: What is played.
        policies: Odds of each action; I / P consecutive episodes belong to one policy.
        states: State of each episode before `turn`.
        turn: Turns already played; they stay 0 in the result.
        generator: Source of all chance.
    """
    by_turn = (process.horizon, len(states))
    who = np.repeat(np.arange(len(policies)), len(states) // len(policies))
    contexts = generator.integers(process.num_contexts, size=by_turn[::-1])
    visited, actions = np.zeros(by_turn, np.int64), np.zeros(by_turn, np.int64)
    lengths = np.full(len(states), turn)
    for h in range(turn, process.horizon):
        running = ~process.is_over[states]
        lengths += running
        odds = policies[who, process.observations[h, states]]
        action = _draw(odds, generator)
        visited[h], actions[h] = states, action
        states = _follow(process, h, states, action, generator)
    outcomes = (generator.random(len(states)) < process.success[states]).astype(np.float64)
    taken = np.arange(process.horizon) < lengths[:, None]
    return Episodes(
        states=np.where(taken, visited.T, 0),
        actions=np.where(taken, actions.T, 0),
        contexts=np.where(taken, contexts, 0),
        final_states=states,
        lengths=lengths,
        outcomes=outcomes,
    )


def _follow(
    process: LayeredProcess,
    turn: int,
    states: Int64[np.ndarray, " I"],
    actions: Int64[np.ndarray, " I"],
    generator: np.random.Generator,
) -> Int64[np.ndarray, " I"]:
    following = process.successors[turn, states, actions]
    if following.shape[1] == 1:
        return following[:, 0]
    drawn = _draw(process.probabilities[turn, states, actions], generator)
    return following[np.arange(len(states)), drawn]


def _draw(
    odds: Float64[np.ndarray, "I K"], generator: np.random.Generator
) -> Int64[np.ndarray, " I"]:
    """Draw one column for each row."""
    threshold = generator.random(len(odds))
    if odds.shape[1] == 2:
        return (threshold >= odds[:, 0]).astype(np.int64)
    edges = np.cumsum(odds[:, :-1], axis=1)
    return (threshold[:, None] >= edges).sum(axis=1)
