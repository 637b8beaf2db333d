"""The estimators that are compared: rules of the trainer, each with a critic of the benchmark.

Rules are those of `rl/presets.py`, computed by `rl.advantage.combine`, as in training.
"""

from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float64

from rl.advantage import Rule, Term, combine
from rl.baseline import BASELINES
from rl.credit_bench.layered_process import Episodes, LayeredProcess
from rl.lag_weights import Gradient, LagEvidence, lag_weighted, no_evidence
from rl.mix_weights import ERRORS_DECAY, Errors
from rl.presets import PRESETS
from rl.scale import RunningSquare
from rl.temporal import LengthAdaptive
from rl.turn_grid import TurnGrid

GROUP_SIZE = 8


@dataclass(frozen=True, kw_only=True)
class Estimator:
    """A way to credit turns."""

    name: str
    rule: Rule
    critic: str | None = None
    """`linear`, `monte_carlo`, `temporal`, `exact`, `branches`; None: it needs none."""
    weighs_lags: bool = False
    """Lags are weighted by what they were worth; the rule is for the time before the critic."""


def _gae(lam: float | LengthAdaptive) -> Term:
    return Term(baseline="critic", temporal="gae", lam=lam, scale="ema_rms")


def _window(name: str, *lambdas: float | LengthAdaptive) -> Estimator:
    rule = Rule(terms=tuple(_gae(lam) for lam in lambdas))
    return Estimator(name=name, rule=rule, critic="linear")


def _preset(name: str, critic: str | None = None, suffix: str = "") -> Estimator:
    return Estimator(name=name + suffix, rule=PRESETS[name].rule, critic=critic)


DEFAULT_ESTIMATORS = (
    _preset("rloo"),
    _window("critic_lambda_1", 1.0),
    _preset("tb_gae", "linear"),
    _preset("tb_gae_mix", "linear"),
    _window("equal_mix", 0.98, 1.0),
    Estimator(name="lag_weighted", rule=PRESETS["rloo"].rule, critic="linear", weighs_lags=True),
    _preset("gigpo"),
)
WINDOWS = (
    _window("lambda_0", 0.0),
    _window("lambda_0.8", 0.8),
    _window("lambda_0.98", 0.98),
    _preset("sao", "linear"),
)
"""With `tb_gae` (.95) and `critic_lambda_1`: the windows that the mix has to keep up with."""
FURTHER_ESTIMATORS = (
    _preset("grpo"),
    _preset("reinforce_pp"),
    _preset("vapo", "linear"),
    _preset("gagpo"),
    _preset("vine", "branches"),
    *(_preset("tb_gae", critic, f"/{critic}") for critic in ("exact", "monte_carlo", "temporal")),
    _preset("tb_gae_mix", "exact", "/exact"),
)
ESTIMATORS = {
    estimator.name: estimator for estimator in (*DEFAULT_ESTIMATORS, *WINDOWS, *FURTHER_ESTIMATORS)
}
"""By the name that the report uses; `preset/critic` where the critic is not the linear one."""


def turn_grid(
    process: LayeredProcess, episodes: Episodes, values: Float64[np.ndarray, "I H"] | None
) -> TurnGrid:
    """Lay episodes of one policy out as the rules want them, in groups of consecutive ones."""
    count, horizon = episodes.states.shape
    rewards = np.zeros((count, horizon))
    rewards[np.arange(count), episodes.lengths - 1] = episodes.outcomes
    anchors = process.anchors[np.arange(horizon), episodes.states]
    return TurnGrid(
        rewards=rewards,
        lengths=episodes.lengths,
        groups=np.arange(count) // GROUP_SIZE,
        final_values=np.zeros(count),
        values=values,
        states=anchors * process.num_contexts + episodes.contexts,
    )


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What an estimator knows of earlier batches."""

    running: tuple[RunningSquare, ...] = ()
    """Of the scales."""
    errors: Errors = Errors()  # noqa: RUF009  frozen
    """Of the critic."""
    evidence: LagEvidence = field(default_factory=no_evidence)
    """Of the lags."""


def estimate(
    estimator: Estimator, grid: TurnGrid, gradient: Gradient, memory: Memory
) -> tuple[Float64[np.ndarray, "I H"], Memory]:
    """Compute the advantages of a batch that the critic has not seen.

    Args:
        estimator: The rule.
        grid: The batch, with the critic's values if the rule needs them and there is a critic.
        gradient: The policy gradient of given advantages on given episodes.
        memory: What is known of earlier batches.

    Returns:
        Advantages, and what is known now.
    """
    if estimator.weighs_lags and grid.values is not None:
        values = BASELINES["critic"](grid, 1.0)
        advantages, evidence = lag_weighted(grid, values, gradient, memory.evidence)
        return advantages, replace(memory, evidence=evidence)
    errors = memory.errors
    if grid.values is not None:
        errors = errors.faded(ERRORS_DECAY) + Errors.of(grid)
    terms = estimator.rule.terms_at(errors.foresight)
    advantages, running = combine(grid, terms, memory.running)
    return advantages, replace(memory, running=running, errors=errors)
