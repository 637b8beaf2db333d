"""Trajectories that a policy needs until it succeeds, by estimator.

A softmax policy starts uniform and takes steps of fixed length along the estimated gradient. Many
runs (seeds and step lengths) go on at once and share nothing but the arrays they are laid out in.
The critic is fit on the batches before the present one, older ones counting less; those batches
are the ones the policy learned from, so its data costs no environment steps of its own, except that
a rule which has nothing but a critic does not update on the first batch. Success is computed, not
sampled.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from rl.credit_bench import critics
from rl.credit_bench.estimators import Estimator, Memory, estimate, turn_grid
from rl.credit_bench.exact import best_success_rate, success_rates
from rl.credit_bench.layered_process import (
    Episodes,
    LayeredProcess,
    sample_episodes,
    softmax,
)
from rl.credit_bench.measures import gradient_of

EPISODES_PER_STEP = 64
STEP_LENGTHS = (0.175, 0.35, 0.7)
"""Norm of a change of all logits; an estimator is judged by its best. Nothing here punishes a
leap, and without a bound the longest would always win: this one is the trust region."""
SUCCESS_SHARE = 0.9
"""Of the best policy's odds of success: where counting ends."""
MAX_STEPS = 120
"""A run that takes more has failed."""
LEARNING_CRITICS = ("linear", None)
"""Critics of estimators that a policy can learn with."""
CRITIC_MEMORY = 0.8
"""Share of its evidence that the critic keeps from step to step: five batches' worth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningResult:
    """How fast runs with one estimator learned."""

    trajectories_to_90: float | None
    """Median over seeds at the best step length; None if the median run failed."""
    by_step_length: dict[float, float | None]
    """The same at each step length; None also where it could not be the best any more."""


def learn(process: LayeredProcess, estimator: Estimator, seeds: int, seed: int) -> LearningResult:
    """Train policies until it is known how many trajectories the median run needs.

    Args:
        process: The environment.
        estimator: Rule and critic (`linear`, or none).
        seeds: Runs of each step length; an odd number has a run as its median.
        seed: Of all chance.

    Raises:
        ValueError: the estimator's critic is not one that learns along.
    """
    if estimator.critic not in LEARNING_CRITICS:
        raise ValueError(f"{estimator.name}: a policy learns with the linear critic or none")
    goal = SUCCESS_SHARE * best_success_rate(process)
    runs = _Runs(process, estimator, np.repeat(STEP_LENGTHS, seeds), seed)
    needed = np.full(len(STEP_LENGTHS) * seeds, np.inf)
    majority = seeds // 2 + 1
    for step in range(1, MAX_STEPS + 1):
        reached = runs.alive[runs.step() >= goal]
        needed[reached] = step * EPISODES_PER_STEP
        runs.drop(reached)
        finished = np.isfinite(needed).reshape(len(STEP_LENGTHS), seeds).sum(axis=1)
        if finished.max() >= majority or not len(runs.alive):
            break
    medians = {
        length: float(np.median(part)) if np.isfinite(np.median(part)) else None
        for length, part in zip(STEP_LENGTHS, needed.reshape(-1, seeds), strict=True)
    }
    found = [median for median in medians.values() if median is not None]
    return LearningResult(trajectories_to_90=min(found) if found else None, by_step_length=medians)


class _Runs:
    """Runs that go on, side by side: a row of every array for each."""

    def __init__(
        self,
        process: LayeredProcess,
        estimator: Estimator,
        step_lengths: Float64[np.ndarray, " P"],
        seed: int,
    ) -> None:
        self.process = process
        self.estimator = estimator
        self.alive = np.arange(len(step_lengths))
        """Numbers of the runs that go on."""
        self._step_lengths = step_lengths
        self._generator = np.random.default_rng(seed)
        shape = (len(step_lengths), process.num_observations, process.num_actions)
        self._logits = np.zeros(shape)
        self._memories = [Memory()] * len(step_lengths)
        self._evidence: critics.Evidence | None = None

    def step(self) -> Float64[np.ndarray, " P"]:
        """Sample, credit and update once; return each run's odds of success now."""
        policies = softmax(self._logits)
        episodes = sample_episodes(self.process, policies, EPISODES_PER_STEP, self._generator)
        tables = self._fit_critics()
        if tables is not None or self._can_start:
            for place, policy in enumerate(policies):
                table = None if tables is None else tables[place]
                gradient = self._gradient(place, policy, _part(episodes, place), table)
                size = float(np.linalg.norm(gradient))
                if size > 0:
                    self._logits[place] += self._step_lengths[place] * gradient / size
        self._remember(episodes)
        return success_rates(self.process, softmax(self._logits))

    def drop(self, finished: np.ndarray) -> None:
        """End runs, given by number."""
        stay = ~np.isin(self.alive, finished)
        self.alive, self._step_lengths = self.alive[stay], self._step_lengths[stay]
        self._logits = self._logits[stay]
        self._memories = [part for part, stays in zip(self._memories, stay, strict=True) if stays]
        if self._evidence is not None:
            self._evidence = critics.Evidence(
                counts=self._evidence.counts[stay], successes=self._evidence.successes[stay]
            )

    @property
    def _can_start(self) -> bool:
        """Whether the rule has something to say before there is a critic."""
        return any(not term.needs_critic for term in self.estimator.rule.terms_at(None))

    def _fit_critics(self) -> Float64[np.ndarray, "P H V 1"] | None:
        if self._evidence is None:
            return None
        return critics.fit_linear(self.process, self._evidence)

    def _remember(self, episodes: Episodes) -> None:
        if self.estimator.critic is None:
            return
        evidence = critics.Evidence.gather(self.process, episodes, len(self.alive))
        older = self._evidence
        self._evidence = evidence if older is None else evidence.after(older, CRITIC_MEMORY)

    def _gradient(
        self,
        place: int,
        policy: Float64[np.ndarray, "O A"],
        episodes: Episodes,
        table: Float64[np.ndarray, "H V 1"] | None,
    ) -> Float64[np.ndarray, "O A"]:
        process = self.process
        values = None
        if table is not None:
            values = critics.values_of(table, process, episodes)
            values += critics.errors(process, episodes, self._generator)
        grid = turn_grid(process, episodes, values)
        gradient = gradient_of(process, policy, episodes)
        advantages, self._memories[place] = estimate(
            self.estimator, grid, gradient, self._memories[place]
        )
        return gradient(advantages, np.ones(len(advantages), bool)).reshape(policy.shape)


def _part(episodes: Episodes, place: int) -> Episodes:
    """Return the episodes of one run."""
    return episodes.select(slice(place * EPISODES_PER_STEP, (place + 1) * EPISODES_PER_STEP))
