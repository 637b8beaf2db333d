"""Estimators compared with the truth at one environment and horizon, at equal environment steps.

Each batch has a budget of environment steps, `EPISODES_PER_BATCH` whole episodes. A rule without a
critic uses them all. A rule with one pays for it: half of the episodes, sampled before the others,
fit the critic, and advantages are computed on the other half. Values from branches pay for every
turn of every branch.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from rl.advantage import combine
from rl.credit_bench import critics
from rl.credit_bench.estimators import GROUP_SIZE, Estimator, Memory, estimate, turn_grid
from rl.credit_bench.exact import Truth, evaluate, uniform_policy
from rl.credit_bench.layered_process import (
    Episodes,
    LayeredProcess,
    play_on,
    sample_episodes,
    softmax,
)
from rl.credit_bench.measures import Measures, Scored, gradient_of, measure
from rl.turn_grid import TurnGrid

EPISODES_PER_BATCH = 512
BRANCH_POINTS = 8
BRANCHES = 9
"""Rollouts from each branch point (arXiv 2410.01679)."""
RATIO_BAND = (0.2, 4.0)
"""Turns whose ratio is outside get no gradient (`dis`)."""


def compare(
    process: LayeredProcess, estimators: Sequence[Estimator], batches: int, seed: int
) -> dict[str, Measures]:
    """Measure estimators under the uniform policy.

    Args:
        process: The environment.
        estimators: What is compared; all see the same episodes.
        batches: Independent repetitions.
        seed: Of all chance.
    """
    policy = uniform_policy(process)
    truth = evaluate(process, policy)
    scored: dict[str, list[Scored]] = {estimator.name: [] for estimator in estimators}
    for generator in np.random.default_rng(seed).spawn(batches):
        behavior = softmax(np.log(policy) + process.mismatch * generator.normal(size=policy.shape))
        episodes = sample_episodes(process, behavior[None], EPISODES_PER_BATCH, generator)
        for estimator in estimators:
            batch, advantages = _estimate(estimator, truth, episodes, generator)
            weights = _ratios(truth, behavior, batch)
            scored[estimator.name].append(
                Scored(episodes=batch, advantages=advantages, weights=weights)
            )
    return {name: measure(truth, parts) for name, parts in scored.items()}


def _estimate(
    estimator: Estimator, truth: Truth, episodes: Episodes, generator: np.random.Generator
) -> tuple[Episodes, Float64[np.ndarray, "I H"]]:
    """Return the episodes that are left of the budget, and their advantages."""
    process = truth.process
    if estimator.critic is None:
        return episodes, _credit(estimator, truth, episodes, None)
    if estimator.critic == "branches":
        return _branch(estimator, truth, episodes, generator)
    half = len(episodes.outcomes) // 2
    earlier, batch = episodes.select(slice(half)), episodes.select(slice(half, None))
    table = _fit(estimator.critic, truth, earlier)
    values = critics.values_of(table, process, batch)
    if estimator.critic != "exact":
        values += critics.errors(process, batch, generator)
    return batch, _credit(estimator, truth, batch, values)


def _credit(
    estimator: Estimator,
    truth: Truth,
    batch: Episodes,
    values: Float64[np.ndarray, "I H"] | None,
) -> Float64[np.ndarray, "I H"]:
    """Compute the advantages of a batch by itself: nothing is known of earlier ones."""
    gradient = gradient_of(truth.process, truth.policy, batch)
    grid = turn_grid(truth.process, batch, values)
    return estimate(estimator, grid, gradient, Memory())[0]


def _fit(critic: str, truth: Truth, earlier: Episodes) -> Float64[np.ndarray, "H V C"]:
    fits = {
        "linear": critics.linear,
        "monte_carlo": critics.monte_carlo,
        "temporal": critics.temporal,
    }
    return fits[critic](truth.process, earlier) if critic in fits else critics.exact(truth)


def _branch(
    estimator: Estimator, truth: Truth, episodes: Episodes, generator: np.random.Generator
) -> tuple[Episodes, Float64[np.ndarray, "I H"]]:
    """Value the states at a few turns by rollouts from there; turns between share their credit.

    The rule sees the stretches between branch points as its turns.
    """
    process = truth.process
    points = np.arange(BRANCH_POINTS) * process.horizon // BRANCH_POINTS
    cost = process.horizon + BRANCHES * int((process.horizon - points).sum())
    affordable = len(episodes.outcomes) * process.horizon // cost
    batch = episodes.select(slice(max(GROUP_SIZE, affordable)))
    count = len(batch.outcomes)
    values = np.empty((count, BRANCH_POINTS))
    for place, turn in enumerate(points):
        before = np.where(batch.lengths > turn, batch.states[:, turn], batch.final_states)
        ends = play_on(
            process, truth.policy[None], np.repeat(before, BRANCHES), int(turn), generator
        )
        values[:, place] = ends.outcomes.reshape(count, BRANCHES).mean(axis=1)
    rewards = np.zeros((count, BRANCH_POINTS))
    rewards[:, -1] = batch.outcomes
    stretches = TurnGrid(
        rewards=rewards,
        lengths=np.full(count, BRANCH_POINTS),
        groups=np.arange(count) // GROUP_SIZE,
        final_values=np.zeros(count),
        values=values,
    )
    advantages, _ = combine(stretches, estimator.rule.terms)
    stretch = np.searchsorted(points, np.arange(process.horizon), side="right") - 1
    return batch, np.where(batch.mask, advantages[:, stretch], 0.0)


def _ratios(
    truth: Truth, behavior: Float64[np.ndarray, "O A"], episodes: Episodes
) -> Float64[np.ndarray, "I H"]:
    """Return the weight of each turn in the gradient: its ratio, 0 outside the band."""
    process = truth.process
    observed = process.observations[np.arange(process.horizon), episodes.states]
    ratios = (truth.policy / behavior)[observed, episodes.actions]
    low, high = RATIO_BAND
    return np.where((ratios > low) & (ratios < high) & episodes.mask, ratios, 0.0)
