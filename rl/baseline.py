r"""Baselines: what was to be expected before each turn, whatever the turn then did.

Takes a grid of turns, returns expectations [I, H], zero behind a trajectory's last turn. With the
return-to-go  G_{i,h} = sum_{k>=h} gamma^{k-h} r_{i,k} + gamma^{n_i-h} f_i  (f: `final_values`, n:
`lengths`) and the return R_i = sum_h r_{i,h} + f_i:

    none          0
    rloo          mean of R over the siblings of i, without i              (arXiv 2402.14740)
    group_mean    mean of R over the siblings of i, with i                 (arXiv 2402.03300)
    batch_mean    mean of R over all trajectories
    state_group   mean of G over all turns of the group that began in the same state
                                                                           (arXiv 2505.10978)
    critic        V(s_h), the critic's estimate

A baseline that depends on the turn's own action biases the gradient. `rloo` and `critic` do not
depend on it. `group_mean` and `batch_mean` hold a share 1/n of the trajectory's own return, as in
their sources: that scales the expected gradient by (n-1)/n and changes nothing else. `state_group`
holds such a share of the turn's own return, with an n that differs from state to state.

What is alone has nothing to be compared with: a trajectory without siblings (`rloo`, `group_mean`)
or a state that was seen once (`state_group`) has its own return as its baseline, and with it the
advantage 0. Others differ here: verl's GRPO gives such a trajectory its raw reward.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float64, Int64

from rl.turn_grid import TurnGrid

Baseline = Callable[[TurnGrid, float], Float64[np.ndarray, "I H"]]
"""From a grid and the discount gamma per turn; only returns-to-go look at gamma."""


def none(grid: TurnGrid, _gamma: float = 1.0) -> Float64[np.ndarray, "I H"]:
    """Expect nothing."""
    return np.zeros_like(grid.rewards)


def rloo(grid: TurnGrid, _gamma: float = 1.0) -> Float64[np.ndarray, "I H"]:
    """Expect the mean return of the other siblings: independent of what this one did."""
    count, total = _count(grid.groups), _sum(grid.returns, grid.groups)
    others = (total - grid.returns) / np.maximum(1, count - 1)
    return _along_rows(grid, np.where(count > 1, others, grid.returns))


def group_mean(grid: TurnGrid, _gamma: float = 1.0) -> Float64[np.ndarray, "I H"]:
    """Expect the mean return of all siblings, this one included."""
    return _along_rows(grid, _sum(grid.returns, grid.groups) / _count(grid.groups))


def batch_mean(grid: TurnGrid, _gamma: float = 1.0) -> Float64[np.ndarray, "I H"]:
    """Expect the mean return of all trajectories, whatever their group."""
    return _along_rows(grid, np.full(len(grid.returns), grid.returns.mean()))


def state_group(grid: TurnGrid, gamma: float = 1.0) -> Float64[np.ndarray, "I H"]:
    """Expect the mean return-to-go from the same state, over all turns of the group.

    Raises:
        ValueError: the grid has no states.
    """
    if grid.states is None:
        raise ValueError("the baseline state_group needs the states before the turns")
    mask = grid.mask
    states = grid.states[mask] - grid.states[mask].min()
    groups = np.broadcast_to(grid.groups[:, None], mask.shape)[mask]
    _, places = np.unique(groups * (states.max() + 1) + states, return_inverse=True)
    expected = np.zeros_like(grid.rewards)
    to_go = returns_to_go(grid, gamma)[mask]
    expected[mask] = _sum(to_go, places) / _count(places)
    return expected


def critic(grid: TurnGrid, _gamma: float = 1.0) -> Float64[np.ndarray, "I H"]:
    """Expect what the critic says.

    Raises:
        ValueError: the grid has no values.
    """
    if grid.values is None:
        raise ValueError("the baseline critic needs a critic's values")
    return np.where(grid.mask, grid.values, 0.0)


BASELINES: dict[str, Baseline] = {
    "none": none,
    "rloo": rloo,
    "group_mean": group_mean,
    "batch_mean": batch_mean,
    "state_group": state_group,
    "critic": critic,
}
"""By the name that a configuration uses."""


def returns_to_go(grid: TurnGrid, gamma: float = 1.0) -> Float64[np.ndarray, "I H"]:
    """Sum what follows each turn, its own reward and the final value included; 0 off the mask.

    Args:
        grid: The turns.
        gamma: Discount per turn.
    """
    to_go = np.zeros_like(grid.rewards)
    after = np.zeros(len(grid.rewards))
    for turn in reversed(range(grid.rewards.shape[1])):
        after = np.where(grid.lengths == turn + 1, grid.final_values, after)
        after = grid.rewards[:, turn] + gamma * after
        to_go[:, turn] = after
    return np.where(grid.mask, to_go, 0.0)


def _along_rows(grid: TurnGrid, values: Float64[np.ndarray, " I"]) -> Float64[np.ndarray, "I H"]:
    return np.where(grid.mask, values[:, None], 0.0)


def _sum(values: Float64[np.ndarray, " N"], keys: Int64[np.ndarray, " N"]) -> np.ndarray:
    """Sum the values of each key; one sum for each entry."""
    _, places = np.unique(keys, return_inverse=True)
    return np.bincount(places, weights=values)[places]


def _count(keys: Int64[np.ndarray, " N"]) -> np.ndarray:
    """Count the entries with the same key; one count for each entry."""
    _, places = np.unique(keys, return_inverse=True)
    return np.bincount(places)[places]
