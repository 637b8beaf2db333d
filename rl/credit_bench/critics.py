r"""Critics of the benchmark: from earlier episodes to a value for everything the critic can see.

A critic is fit on episodes that no advantage is computed from: on its own, it would explain their
chance too. Its result is a table [H, V, C], over turn, view and context (C = 1 if it is blind to
contexts).

    exact         E[R | view], of the truth: what no fit can beat
    monte_carlo   mean outcome of the episodes that were there
    temporal      backward over the layers, mean value of where those episodes went next: the value
                  in the process that the episodes suggest (certainty equivalence)
    linear        ridge regression of the outcome on powers of progress and time: it generalises, as
                  a network does, and is fit on outcomes (lambda = 1), as ours is
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Float64, Int64

from rl.credit_bench.exact import Truth
from rl.credit_bench.layered_process import Episodes, LayeredProcess

POLYNOMIAL_DEGREE = 4
RIDGE = 1e-3
"""Weight of the squared coefficients, in turns."""
NOISE_RHO = 0.5
"""Correlation of the added errors of neighbouring turns."""


def values_of(
    table: Float64[np.ndarray, "H V C"], process: LayeredProcess, episodes: Episodes
) -> Float64[np.ndarray, "I H"]:
    """Look up a critic's value before each turn of episodes, 0 behind the last."""
    turns = np.arange(process.horizon)
    context = episodes.contexts if table.shape[2] > 1 else 0
    looked_up = table[turns, process.views[turns, episodes.states], context]
    return np.where(episodes.mask, looked_up, 0.0)


def exact(truth: Truth) -> Float64[np.ndarray, "H V 1"]:
    """Return the best value that a critic with these views can have."""
    return by_view(truth.process, truth.view_values)[:, :, None]


def by_view(
    process: LayeredProcess, by_state: Float64[np.ndarray, "H S"]
) -> Float64[np.ndarray, "H V"]:
    """Turn numbers by state, equal where views are equal, into numbers by view; 0 for no state."""
    table = np.zeros((process.horizon, process.num_views))
    np.put_along_axis(table, np.ascontiguousarray(process.views), by_state, axis=1)
    return table


def monte_carlo(process: LayeredProcess, earlier: Episodes) -> Float64[np.ndarray, "H V C"]:
    """Fit a table to outcomes."""
    cells = cell_numbers(process, earlier)[earlier.mask]
    outcomes = np.broadcast_to(earlier.outcomes[:, None], earlier.mask.shape)[earlier.mask]
    shape = (process.horizon, process.num_views, process.num_contexts)
    return _means(cells, outcomes, shape, float(earlier.outcomes.mean()))


def temporal(process: LayeredProcess, earlier: Episodes) -> Float64[np.ndarray, "H V C"]:
    """Fit a table backward, each turn to the fitted values of the turns that followed."""
    shape = (process.num_views, process.num_contexts)
    table = np.empty((process.horizon, *shape))
    cells = cell_numbers(process, earlier)
    following = earlier.outcomes.copy()
    for h in reversed(range(process.horizon)):
        here = earlier.lengths > h
        places = cells[here, h] - h * shape[0] * shape[1]
        table[h] = _means(places, following[here], shape, float(earlier.outcomes.mean()))
        following[here] = table[h].reshape(-1)[places]
    return table


def linear(process: LayeredProcess, earlier: Episodes) -> Float64[np.ndarray, "H V 1"]:
    """Fit powers of progress and time to outcomes."""
    evidence = Evidence.gather(process, earlier, 1)
    return fit_linear(process, evidence)[0]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a linear critic needs of episodes of P policies: visits and successes by view."""

    counts: Float64[np.ndarray, "P H V"]
    successes: Float64[np.ndarray, "P H V"]

    @staticmethod
    def gather(process: LayeredProcess, episodes: Episodes, policies: int) -> "Evidence":
        """Count; I / policies consecutive episodes belong to one policy."""
        shape = (policies, process.horizon, process.num_views)
        turns = np.arange(process.horizon)
        who = np.repeat(np.arange(policies), len(episodes.outcomes) // policies)[:, None]
        views = process.views[turns, episodes.states]
        mask = episodes.mask
        cells = ((who * shape[1] + turns) * shape[2] + views)[mask]
        outcomes = np.broadcast_to(episodes.outcomes[:, None], mask.shape)[mask]
        size = int(np.prod(shape))
        return Evidence(
            counts=np.bincount(cells, minlength=size).reshape(shape).astype(np.float64),
            successes=np.bincount(cells, weights=outcomes, minlength=size).reshape(shape),
        )

    def after(self, older: "Evidence", keep: float) -> "Evidence":
        """Add older evidence, forgetting all but the share `keep` of it."""
        return Evidence(
            counts=self.counts + keep * older.counts,
            successes=self.successes + keep * older.successes,
        )


def fit_linear(process: LayeredProcess, evidence: Evidence) -> Float64[np.ndarray, "P H V 1"]:
    """Fit each policy's linear critic; values are kept in [0, 1], where the outcomes are."""
    features = _features(process)
    size = features.shape[-1]
    flat = features.reshape(-1, size)
    tables = np.empty((*evidence.counts.shape, 1))
    for policy, (counts, successes) in enumerate(
        zip(evidence.counts, evidence.successes, strict=True)
    ):
        seen = counts.reshape(-1) > 0
        rows = flat[seen]
        square = rows.T @ (rows * counts.reshape(-1)[seen, None]) + RIDGE * np.eye(size)
        solution = np.linalg.solve(square, rows.T @ successes.reshape(-1)[seen])
        tables[policy, ..., 0] = np.clip(features @ solution, 0.0, 1.0)
    return tables


def errors(
    process: LayeredProcess, episodes: Episodes, generator: np.random.Generator
) -> Float64[np.ndarray, "I H"]:
    """Draw the error that the process adds to a critic's values; 0 where it adds none."""
    if process.critic_noise == 0:
        return np.zeros(episodes.states.shape)
    noise = ar1_noise(episodes.states.shape, process.critic_noise, NOISE_RHO, generator)
    return np.where(episodes.mask, noise, 0.0)


def ar1_noise(
    shape: tuple[int, int], deviation: float, rho: float, generator: np.random.Generator
) -> Float64[np.ndarray, "I H"]:
    """Draw errors of a critic: stationary, correlation rho between neighbouring turns."""
    errors = generator.normal(size=shape)
    for h in range(1, shape[1]):
        errors[:, h] = rho * errors[:, h - 1] + np.sqrt(1 - rho**2) * errors[:, h]
    return deviation * errors


def cell_numbers(process: LayeredProcess, episodes: Episodes) -> Int64[np.ndarray, "I H"]:
    """Number what a critic sees before each turn: turn, view and context."""
    turns = np.arange(process.horizon)
    views = process.views[turns, episodes.states]
    return (turns * process.num_views + views) * process.num_contexts + episodes.contexts


def _means(
    cells: Int64[np.ndarray, " N"],
    numbers: Float64[np.ndarray, " N"],
    shape: tuple[int, ...],
    otherwise: float,
) -> Float64[np.ndarray, "... V C"]:
    """Average by cell; unseen ones get the mean of the other contexts of their view, if any."""
    size = int(np.prod(shape))
    count = np.bincount(cells, minlength=size).reshape(shape)
    total = np.bincount(cells, weights=numbers, minlength=size).reshape(shape)
    table = np.full((*shape[:-1], 1), otherwise)
    in_view = count.sum(axis=-1, keepdims=True)
    np.divide(total.sum(axis=-1, keepdims=True), in_view, out=table, where=in_view > 0)
    table = np.repeat(table, shape[-1], axis=-1)
    np.divide(total, count, out=table, where=count > 0)
    return table


def _features(process: LayeredProcess) -> Float64[np.ndarray, "H V F"]:
    """Products of powers of progress and time, of total degree up to `POLYNOMIAL_DEGREE`."""
    progress = by_view(process, process.progress)
    time = np.broadcast_to(np.linspace(-1, 1, process.horizon)[:, None], progress.shape)
    degrees = range(POLYNOMIAL_DEGREE + 1)
    powers = [
        (first, second)
        for first, second in product(degrees, degrees)
        if first + second <= POLYNOMIAL_DEGREE
    ]
    return np.stack([progress**first * time**second for first, second in powers], axis=-1)
