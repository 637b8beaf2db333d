r"""Estimated advantages against true ones: what is measured of an estimator, and how.

    corr              Pearson correlation over all turns
    corr_within       the same after each episode's mean is taken from both: no credit for knowing
                      which episodes went well
    mse               E(c Ahat - A)^2 / E A^2, with c = E A^2 / E(Ahat A), at which c Ahat follows A
                      one to one; it is 1 / corr^2 - 1
    bias, variance    its two parts: mean (E[c Ahat | h, s, a] - A)^2, and the spread around it
    pivot_auroc       odds that |Ahat| is larger at a pivotal turn than at another one
    cosine            between the estimated and the true gradient in the policy's logits

The bias of a broadcast outcome is what the state is worth, V(s) - b: it is in the mean square, and
averages out of the gradient.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Bool, Float64

from rl.credit_bench.exact import Truth
from rl.credit_bench.layered_process import Episodes, LayeredProcess
from rl.lag_weights import Gradient

PIVOTAL = 4.0
"""A turn is pivotal if its choice matters so many times the mean (E_a A^2 over its mean)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """The figures of an estimator, each a mean over batches."""

    corr: float
    corr_within: float
    mse: float | None
    """None, and so are its parts, where the estimate goes against the truth."""
    bias: float | None
    variance: float | None
    pivot_auroc: float | None
    """None where no turn is pivotal."""
    cosine: float


MEASURES = tuple(field.name for field in fields(Measures))


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A batch with an estimator's advantages."""

    episodes: Episodes
    advantages: Float64[np.ndarray, "I H"]
    weights: Float64[np.ndarray, "I H"]
    """Ratio of the policy to what sampled: what the gradient multiplies with."""


def measure(truth: Truth, batches: Sequence[Scored]) -> Measures:
    """Compare an estimator's advantages in several batches with the truth."""
    true = [truth.advantages_of(batch.episodes) for batch in batches]
    pairs = list(zip(batches, true, strict=True))
    aurocs = [value for batch in batches if (value := pivot_auroc(truth, batch)) is not None]
    parts = split_error(truth, pairs)
    bias, variance = (None, None) if parts is None else parts
    return Measures(
        corr=_mean(correlation(batch, real) for batch, real in pairs),
        corr_within=_mean(correlation_within(batch, real) for batch, real in pairs),
        mse=None if parts is None else sum(parts),
        bias=bias,
        variance=variance,
        pivot_auroc=_mean(aurocs) if aurocs else None,
        cosine=_mean(cosine(truth, batch) for batch in batches),
    )


def correlation(batch: Scored, true: Float64[np.ndarray, "I H"]) -> float:
    """Correlate over all turns of a batch; 0 where all advantages are equal."""
    mask = batch.episodes.mask
    return _pearson(batch.advantages[mask], true[mask])


def correlation_within(batch: Scored, true: Float64[np.ndarray, "I H"]) -> float:
    """Correlate over all turns of a batch after taking out the mean of each episode."""
    mask, lengths = batch.episodes.mask, batch.episodes.lengths[:, None]
    centred = [
        (values - values.sum(axis=1, keepdims=True) / lengths)[mask]
        for values in (batch.advantages, true)
    ]
    return _pearson(*centred)


def split_error(
    truth: Truth, pairs: Sequence[tuple[Scored, Float64[np.ndarray, "I H"]]]
) -> tuple[float, float] | None:
    """Split the mean square error into the bias at fixed (h, s, a) and the rest, over E A^2.

    Over n estimates at one (h, s, a), the square of their mean error holds a share 1/n of their
    spread, which is taken out; what was seen once has no spread to be known, and is left out.

    Returns:
        Bias and variance; None if the estimates go against the truth, which no scale mends.
    """
    process = truth.process
    cells, estimates, truths = [], [], []
    for batch, true in pairs:
        mask = batch.episodes.mask
        turns = np.arange(process.horizon)
        number = turns * process.num_states + batch.episodes.states
        cells.append((number * process.num_actions + batch.episodes.actions)[mask])
        estimates.append(batch.advantages[mask])
        truths.append(true[mask])
    estimate, true = np.concatenate(estimates), np.concatenate(truths)
    together = float((estimate * true).mean())
    size = float((true**2).mean())
    if together <= 0:
        return None
    errors = size / together * estimate - true
    cell = np.concatenate(cells)
    count = np.bincount(cell)
    total = np.bincount(cell, weights=errors)
    squares = np.bincount(cell, weights=errors**2)
    known = count > 1
    count, total, squares = count[known], total[known], squares[known]
    spread = (squares - total**2 / count) / (count - 1)
    bias = float((total**2 / count - spread).sum() / count.sum())
    variance = float((spread * count).sum() / count.sum())
    return max(0.0, bias) / size, variance / size


def pivot_auroc(truth: Truth, batch: Scored) -> float | None:
    """Rank turns by |Ahat| and return the odds that a pivotal one is ahead of another one."""
    turns = np.arange(truth.process.horizon)
    mask = batch.episodes.mask
    decisiveness = truth.decisiveness()[turns, batch.episodes.states][mask]
    pivotal = decisiveness > PIVOTAL * float(truth.choices.mean())
    if pivotal.all() or not pivotal.any():
        return None
    return _auroc(np.abs(batch.advantages[mask]), pivotal)


def gradient_of(
    process: LayeredProcess, policy: Float64[np.ndarray, "O A"], episodes: Episodes
) -> Gradient:
    """Return the policy gradient in the logits as a function of advantages and of what counts."""
    observed = process.observations[np.arange(process.horizon), episodes.states]
    rows, columns = policy.shape

    def gradient(
        advantages: Float64[np.ndarray, "I H"], counts: Bool[np.ndarray, " I"]
    ) -> Float64[np.ndarray, " P"]:
        taken = episodes.mask & counts[:, None]
        row, weights = observed[taken], advantages[taken]
        chosen = np.bincount(
            row * columns + episodes.actions[taken], weights=weights, minlength=policy.size
        )
        total = np.bincount(row, weights=weights, minlength=rows)
        return chosen - (total[:, None] * policy).ravel()

    return gradient


def cosine(truth: Truth, batch: Scored) -> float:
    """Compare the direction of the estimated gradient with that of the true one."""
    everyone = np.ones(len(batch.episodes.outcomes), bool)
    gradient = gradient_of(truth.process, truth.policy, batch.episodes)
    estimated, true = gradient(batch.advantages * batch.weights, everyone), truth.gradient.ravel()
    size = float(np.linalg.norm(estimated) * np.linalg.norm(true))
    return float((estimated * true).sum()) / size if size > 0 else 0.0


def _pearson(first: Float64[np.ndarray, " N"], second: Float64[np.ndarray, " N"]) -> float:
    first, second = first - first.mean(), second - second.mean()
    size = float(np.sqrt((first**2).sum() * (second**2).sum()))
    return float((first * second).sum()) / size if size > 0 else 0.0


def _auroc(scores: Float64[np.ndarray, " N"], positive: Bool[np.ndarray, " N"]) -> float:
    """Mann-Whitney: ties count one half."""
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    wins = ranks[positive].sum() - positive.sum() * (positive.sum() + 1) / 2
    return float(wins / (positive.sum() * (~positive).sum()))


def _mean(values: Sequence[float] | object) -> float:
    return float(np.mean(list(values)))  # pyright: ignore[reportArgumentType]  any iterable
