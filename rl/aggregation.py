r"""Aggregations: how the losses of a step's tokens become one number.

Takes each trajectory's number of loss tokens n_i and its group, returns a weight w_i for each of
its tokens and one denominator; the loss of a step is  sum_i w_i sum_t loss_it / denominator, over
I trajectories and P groups:

    token_mean            1 / sum_i n_i             every token alike      (DAPO, arXiv 2503.14476)
    token_sum_const       1 / (I n_max)             n_max: a constant, the budget of an episode
                                                                        (Dr. GRPO, arXiv 2503.20783)
    seq_mean_token_mean   1 / (I n_i)               every trajectory alike  (GRPO, arXiv 2402.03300)
    seq_mean_token_sum    1 / I
    prompt_mean           1 / (P sum_{j in group} n_j)                      every group alike

The denominator is that of the whole step. A mean per micro-batch, averaged, would weight a token by
its neighbours, and would change with the packing. A trajectory is all of its segments.

A weight that depends on a trajectory's own length biases the policy gradient: under
`seq_mean_token_mean` a long failure costs each of its tokens less than a short one.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float64, Int64

Weighting = tuple[Float64[np.ndarray, " I"], float]
"""Weight of a token of each trajectory, and the denominator of the step."""
Aggregation = Callable[[Int64[np.ndarray, " I"], Int64[np.ndarray, " I"], int], Weighting]
"""From loss tokens and group of each trajectory, and the most tokens that a policy may write."""


def token_mean(
    num_tokens: Int64[np.ndarray, " I"], _groups: Int64[np.ndarray, " I"], _most: int
) -> Weighting:
    """Weigh all tokens alike."""
    return np.ones(len(num_tokens)), float(num_tokens.sum())


def token_sum_const(
    num_tokens: Int64[np.ndarray, " I"], _groups: Int64[np.ndarray, " I"], most: int
) -> Weighting:
    """Weigh all tokens alike, whatever the step's number of tokens."""
    return np.ones(len(num_tokens)), float(len(num_tokens) * most)


def seq_mean_token_mean(
    num_tokens: Int64[np.ndarray, " I"], _groups: Int64[np.ndarray, " I"], _most: int
) -> Weighting:
    """Weigh all trajectories alike."""
    return 1.0 / num_tokens, float(len(num_tokens))


def seq_mean_token_sum(
    num_tokens: Int64[np.ndarray, " I"], _groups: Int64[np.ndarray, " I"], _most: int
) -> Weighting:
    """Weigh all tokens alike, by the step's number of trajectories."""
    return np.ones(len(num_tokens)), float(len(num_tokens))


def prompt_mean(
    num_tokens: Int64[np.ndarray, " I"], groups: Int64[np.ndarray, " I"], _most: int
) -> Weighting:
    """Weigh all groups alike, and all tokens of a group."""
    names, places = np.unique(groups, return_inverse=True)
    tokens_of_group = np.bincount(places, weights=num_tokens)
    return 1.0 / tokens_of_group[places], float(len(names))


AGGREGATIONS: dict[str, Aggregation] = {
    "token_mean": token_mean,
    "token_sum_const": token_sum_const,
    "seq_mean_token_mean": seq_mean_token_mean,
    "seq_mean_token_sum": seq_mean_token_sum,
    "prompt_mean": prompt_mean,
}
"""By the name that a configuration uses."""
