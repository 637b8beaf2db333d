r"""What the correlation with the true advantage must be, in closed form.

With the exact value as critic, the surprises delta_h of an episode are uncorrelated, and only the
turn's own surprise says anything about its action. So for any estimator that sums later surprises,
Ahat_h = sum_k c_k delta_{h+k}, with s_h = E delta_h^2, the covariance with the truth is
c_0 E A_h^2, and over all turns of an episode (n: turns, sums of what is inside the episode)

    corr = c_0 sqrt(sum_h E A_h^2) / sqrt(sum_h sum_k c_k^2 s_{h+k})

Gae has c_k = lambda^k; a mix of several has the weighted sum. If the outcome is settled evenly,
s_h = Var(R) / H, and with eta = sum_h E A_h^2 / Var(R), z the verifier's share of Var(R):

    broadcast R - b        sqrt(eta / H), times sqrt((G - 1) / G) for `rloo` in groups of G
    lambda = 1             sqrt(eta / H) sqrt(2 / (1 + z))
    window W = 1/(1-lam)   sqrt(eta (1 - lambda^2))  ~  sqrt(2 eta / W): no H in it

A critic with an error of its own, AR(1) over turns with variance e and correlation rho, adds
2 e (1 - rho) / ((1 + lambda)(1 - lambda rho)) to the mean square s / (1 - lambda^2).
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from rl.credit_bench.estimators import GROUP_SIZE, Estimator
from rl.credit_bench.exact import Truth


def correlation_law(truth: Truth, estimator: Estimator) -> float | None:
    """Give the correlation that an estimator must have, if it had the exact critic.

    Returns:
        None if there is no closed form: not a sum of gae, or `rloo`; episodes of many lengths; a
        critic that does not see all there is; another policy that samples.
    """
    process = truth.process
    unseen = np.where(truth.visits[:-1] > 0, truth.view_values - truth.values[:-1], 0.0)
    adapts = estimator.rule.gate is not None or estimator.weighs_lags
    if process.is_over.any() or process.mismatch or np.abs(unseen).max() > 1e-9 or adapts:
        return None
    terms = estimator.rule.terms
    if [term.baseline for term in terms] == ["rloo"]:
        return broadcast_correlation(truth, GROUP_SIZE)
    if not all(term.temporal == "gae" and term.needs_critic for term in terms):
        return None
    lambdas = [term.lam for term in terms if isinstance(term.lam, float)]
    weights = [term.weight for term in terms]
    return mix_correlation(truth, lambdas, weights) if len(lambdas) == len(terms) else None


def broadcast_correlation(truth: Truth, group_size: int) -> float:
    """Give the correlation of `rloo`: the outcome minus the mean of the G - 1 others."""
    share = truth.choices.sum() / truth.return_variance
    return math.sqrt(share / truth.process.horizon * (group_size - 1) / group_size)


def mix_correlation(truth: Truth, lambdas: Sequence[float], weights: Sequence[float]) -> float:
    """Give the correlation of sum_j w_j Ahat_{lambda_j} / rms(Ahat_{lambda_j}), exact critic.

    Args:
        truth: The process and the policy; its critic sees the whole state.
        lambdas: One for each part.
        weights: One for each part.
    """
    parts = list(zip(lambdas, weights, strict=True))
    shares = [weight / math.sqrt(_overlap(truth.surprises, lam, lam)) for lam, weight in parts]
    square = sum(
        first * second * _overlap(truth.surprises, one, other)
        for first, one in zip(shares, lambdas, strict=True)
        for second, other in zip(shares, lambdas, strict=True)
    )
    return sum(shares) * math.sqrt(float(truth.choices.mean())) / math.sqrt(square)


def gae_correlation(truth: Truth, lam: float) -> float:
    """Give the correlation of gae(lambda) with the exact critic."""
    return mix_correlation(truth, [lam], [1.0])


def noisy_gae_correlation(truth: Truth, lam: float, deviation: float, rho: float) -> float:
    """Give the correlation of gae(lambda) in long episodes if the critic errs.

    Args:
        truth: The process and the policy.
        lam: lambda per turn, below 1.
        deviation: Standard deviation of the error.
        rho: Correlation of the errors of neighbouring turns.
    """
    surprise = float(truth.surprises.mean()) / (1 - lam**2)
    error = 2 * deviation**2 * (1 - rho) / ((1 + lam) * (1 - lam * rho))
    return math.sqrt(float(truth.choices.mean()) / (surprise + error))


def slope_in_log_horizon(by_horizon: dict[int, float]) -> float | None:
    """Fit log(value) = slope * log(H) + c by least squares over H >= 100.

    Returns:
        The slope; None with fewer than two horizons, or if a value is not positive.
    """
    points = [(horizon, value) for horizon, value in by_horizon.items() if horizon >= 100]
    if len(points) < 2 or any(value <= 0 for _, value in points):
        return None
    logs = np.log(np.array(points, dtype=np.float64))
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])


def _overlap(surprises: Float64[np.ndarray, " H"], one: float, other: float) -> float:
    """Mean over turns of sum_k (one * other)^k s_{h+k}: the mean product of two gae."""
    decay, after, total = one * other, 0.0, 0.0
    for square in surprises[::-1]:
        after = float(square) + decay * after
        total += after
    return total / len(surprises)
