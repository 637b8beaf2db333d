r"""The truth about a policy in a process: values, advantages, visits and gradient, exactly.

Backward over the layers, with pi the policy, P the transitions and p the verifier's odds:

    V_{H+1}(s) = p(s)     Q_h(s, a) = sum_{s'} P_h(s' | s, a) V_{h+1}(s')
    V_h(s) = sum_a pi(a | s) Q_h(s, a)     A_h(s, a) = Q_h(s, a) - V_h(s)

and forward for the odds d_h(s) of being in s before turn h. One outcome comes at the end, so that
the return splits into uncorrelated parts, one per choice, per transition and for the verifier:

    R - V_1(s_1) = sum_h A_h(s_h, a_h) + sum_h xi_h + zeta       xi_h = V_{h+1}(s_{h+1}) - Q_h

and Var(R) = Var V_1(s_1) + sum_h E A_h^2 + sum_h E xi_h^2 + E zeta^2: the budget that every
estimator has to live on, and the check of this module by itself.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float64

from rl.credit_bench.layered_process import Episodes, LayeredProcess


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What is true of one policy in one process."""

    process: LayeredProcess
    policy: Float64[np.ndarray, "O A"]
    """Odds of each action at each observation."""
    values: Float64[np.ndarray, "H_plus_1 S"]
    """Odds of success before each turn, and behind the last."""
    advantages: Float64[np.ndarray, "H S A"]
    visits: Float64[np.ndarray, "H_plus_1 S"]
    """Odds of each state before each turn, and behind the last; a layer adds up to 1."""

    @property
    def success_rate(self) -> float:
        """Odds of success of an episode."""
        return float(self.visits[0] @ self.values[0])

    @cached_property
    def action_odds(self) -> Float64[np.ndarray, "H S A"]:
        """pi(a | s) at each turn; 0 where the episode is over."""
        odds = self.policy[self.process.observations]
        return odds * ~self.process.is_over[:, None]

    @cached_property
    def choices(self) -> Float64[np.ndarray, " H"]:
        """E A_h^2: what the policy's choice at each turn contributes to the variance of R."""
        squares = (self.action_odds * self.advantages**2).sum(-1)
        return (self.visits[:-1] * squares).sum(-1)

    @cached_property
    def surprises(self) -> Float64[np.ndarray, " H"]:
        """E delta_h^2: what each turn contributes, by choice, chance and (the last) verifier."""
        horizon = self.process.horizon
        squares = np.zeros(horizon)
        for h in range(horizon):
            changes = self.values[h + 1][self.process.successors[h]] - self.values[h][:, None, None]
            spread = (self.process.probabilities[h] * changes**2).sum(-1)
            squares[h] = self.visits[h] @ (self.policy[self.process.observations[h]] * spread).sum(
                -1
            )
        final = self.process.success
        squares[-1] += self.visits[-1] @ (final * (1 - final))
        return squares

    @property
    def start_variance(self) -> float:
        """Var V_1(s_1): what was settled before the first turn."""
        return float(self.visits[0] @ self.values[0] ** 2) - self.success_rate**2

    @property
    def return_variance(self) -> float:
        """Var(R) of a coin with the odds of success."""
        return self.success_rate * (1 - self.success_rate)

    @property
    def choice_share(self) -> float:
        """eta: share of Var(R) that the policy's own choices cause."""
        return float(self.choices.sum()) / self.return_variance

    @property
    def verifier_share(self) -> float:
        """z: share of Var(R) that is the verifier's coin."""
        final = self.process.success
        return float(self.visits[-1] @ (final * (1 - final))) / self.return_variance

    @cached_property
    def view_values(self) -> Float64[np.ndarray, "H S"]:
        """E[R | what the critic sees]: the best value that a critic with these views can have."""
        views = self.process.views
        best = np.empty(views.shape)
        for h in range(self.process.horizon):
            weight = np.bincount(views[h], weights=self.visits[h])
            total = np.bincount(views[h], weights=self.visits[h] * self.values[h])
            best[h] = (total / np.where(weight > 0, weight, 1.0))[views[h]]
        return best

    @cached_property
    def gradient(self) -> Float64[np.ndarray, "O A"]:
        """Gradient of the success rate in the logits: sum_{h,s} d_h(s) pi(a | s) A_h(s, a)."""
        process = self.process
        flow = self.visits[:-1, :, None] * self.action_odds * self.advantages
        gradient = np.zeros_like(self.policy)
        np.add.at(gradient, process.observations, flow)
        return gradient

    def advantages_of(self, episodes: Episodes) -> Float64[np.ndarray, "I H"]:
        """Return the true advantage of each turn taken, 0 behind the last."""
        turns = np.arange(self.process.horizon)
        return np.where(
            episodes.mask, self.advantages[turns, episodes.states, episodes.actions], 0.0
        )

    def decisiveness(self) -> Float64[np.ndarray, "H S"]:
        """E_a A_h(s, a)^2 of each state: how much there is to choose."""
        return (self.action_odds * self.advantages**2).sum(-1)


def evaluate(process: LayeredProcess, policy: Float64[np.ndarray, "O A"]) -> Truth:
    """Compute the truth about a policy by dynamic programming.

    Args:
        process: The decision process.
        policy: Odds of each action at each observation.
    """
    horizon, states, actions, _ = process.successors.shape
    values = np.empty((horizon + 1, states))
    advantages = np.empty((horizon, states, actions))
    values[horizon] = process.success
    for h in reversed(range(horizon)):
        following = values[h + 1][process.successors[h]]
        action_values = (process.probabilities[h] * following).sum(-1)
        values[h] = (policy[process.observations[h]] * action_values).sum(-1)
        advantages[h] = action_values - values[h][:, None]
    return Truth(
        process=process,
        policy=policy,
        values=values,
        advantages=advantages,
        visits=_visits(process, policy),
    )


def uniform_policy(process: LayeredProcess) -> Float64[np.ndarray, "O A"]:
    """Return the policy that all runs start from: every action as likely at every observation."""
    return np.full((process.num_observations, process.num_actions), 1 / process.num_actions)


def success_rates(
    process: LayeredProcess, policies: Float64[np.ndarray, "P O A"]
) -> Float64[np.ndarray, " P"]:
    """Compute the odds of success of several policies at once."""
    values = np.broadcast_to(process.success, (len(policies), process.num_states))
    for h in reversed(range(process.horizon)):
        action_values = (process.probabilities[h] * values[:, process.successors[h]]).sum(-1)
        values = (policies[:, process.observations[h]] * action_values).sum(-1)
    return values @ process.initial


def best_success_rate(process: LayeredProcess) -> float:
    """Compute the odds of success of the best policy that sees the whole state."""
    values = process.success
    for h in reversed(range(process.horizon)):
        values = (process.probabilities[h] * values[process.successors[h]]).sum(-1).max(-1)
    return float(values @ process.initial)


def _visits(
    process: LayeredProcess, policy: Float64[np.ndarray, "O A"]
) -> Float64[np.ndarray, "H_plus_1 S"]:
    visits = np.empty((process.horizon + 1, process.num_states))
    visits[0] = process.initial
    for h in range(process.horizon):
        odds = policy[process.observations[h]]
        flow = visits[h][:, None, None] * odds[:, :, None] * process.probabilities[h]
        visits[h + 1] = np.bincount(
            process.successors[h].ravel(), weights=flow.ravel(), minlength=process.num_states
        )
    return visits
