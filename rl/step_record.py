"""What a step amounts to: the facts of its stages become the metrics of `rl/metrics.py`.

Takes what the loop got from its stages, returns metrics by name.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rl.agreement import Agreement
from rl.credit import Credit
from rl.critic_measures import CriticStatistics
from rl.episode_scores import Scores
from rl.evaluate import Evaluation
from rl.learner import Update
from rl.metrics import MetricValue
from rl.publish import Publication
from rollout.group_statistics import summarize
from rollout.trajectory import Group


class Stopwatch:
    """Splits the wall time of a step into named parts that follow each other.

    Worked example:

        watch = Stopwatch()
        ...                             # wait for groups
        watch.lap("collect_wait")
        ...                             # learn
        watch.lap("learn")
        watch.finish()                  # {"collect_wait": 3.1, "learn": 4.0, "step": 7.1}
    """

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()
        self._seconds: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """End a part: all time since the last lap is its own."""
        now = time.monotonic()
        self._seconds[name] = now - self._last
        self._last = now

    def finish(self) -> dict[str, float]:
        """Return the seconds of each part, and of everything as `step`; start anew."""
        now = time.monotonic()
        seconds = {**self._seconds, "step": now - self._start}
        self._start = self._last = now
        self._seconds = {}
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step of the loop."""

    step: int
    """From 1: the policy version that the step made."""
    environments: Sequence[str]
    """Key of each group's environment."""
    groups: Sequence[Group]
    credit: Credit
    critic: CriticStatistics | None
    """None without a critic."""
    update: Update
    publication: Publication
    trajectory_agreement: Agreement
    """Behavior log-probs against the learner's, same version."""
    probe_agreement: Agreement
    """Engine and learner on the probe, after the publish."""
    seconds: Mapping[str, float]
    """Wall time of the parts of the step, and of everything as `step` (`Stopwatch`)."""

    def metrics(self) -> dict[str, MetricValue]:
        """Return the metrics of the step, by name."""
        statistics = self.update.statistics
        return {
            **self._reward_metrics(),
            **self._rollout_metrics(),
            **self._load_metrics(),
            **self._credit_metrics(),
            "rl/loss": statistics.loss,
            "rl/grad_norm": self.update.grad_norm,
            "rl/entropy": statistics.entropy,
            "rl/ratio_masked_fraction": statistics.ratio_masked_fraction,
            "rl/log_ratio_abs_mean": statistics.log_ratio_abs_mean,
            "rl/effective_sample_size": statistics.effective_sample_size,
            "rl/learning_rate": self.update.learning_rate,
            "rl/samples": len(self.credit.samples),
            "rl/logprob_gap_mean": self.trajectory_agreement.gap_mean,
            "rl/logprob_gap_max": self.trajectory_agreement.gap_max,
            "rl/probe_gap_mean": self.probe_agreement.gap_mean,
            "rl/probe_gap_max": self.probe_agreement.gap_max,
            "publish/seconds": self.publication.seconds,
            "publish/bytes": self.publication.total_bytes,
            **{f"time/{part}_seconds": value for part, value in self.seconds.items()},
        }

    def _reward_metrics(self) -> dict[str, MetricValue]:
        scores = Scores.of(
            [
                (name, trajectory)
                for name, group in zip(self.environments, self.groups, strict=True)
                for trajectory in group.trajectories
            ]
        )
        return {
            "rewards/mean": finite_or_none(scores.overall_mean),
            **_by_word("rewards/mean", scores.mean),
            **_by_word("rewards/pass_rate", scores.pass_rate),
            **_by_word("rewards/invalid", scores.invalid),
        }

    def _rollout_metrics(self) -> dict[str, MetricValue]:
        statistics = summarize(self.groups)
        lags = self._lags()
        return {
            "rollout/tokens_per_second": statistics.sampled_tokens / self.seconds["step"],
            "rollout/sampled_tokens": statistics.sampled_tokens,
            "rollout/turns_mean": statistics.mean_turns,
            "rollout/recomputed_token_ratio": statistics.recomputed_token_ratio,
            "rollout/publish_recomputed_tokens": statistics.publish_recomputed_tokens,
            "rollout/mixed_version_tokens": statistics.mixed_version_tokens,
            "rollout/lag_mean": float(lags.mean()) if len(lags) else None,
            "rollout/lag_max": int(lags.max()) if len(lags) else None,
        }

    def _load_metrics(self) -> dict[str, MetricValue]:
        load = self.update.expert_load
        if load is None:
            return {}
        violations, dead = enumerate(load.max_violation()), enumerate(load.num_dead())
        return {
            **{f"model/load_violation/{layer}": value for layer, value in violations},
            **{f"model/dead_experts/{layer}": value for layer, value in dead},
        }

    def _credit_metrics(self) -> dict[str, MetricValue]:
        metrics = {} if self.critic is None else critic_metrics(self.critic)
        terms, statistics = self.credit.terms, self.credit.statistics
        if self.critic is not None:
            of_critic = sum(abs(term.weight) for term in terms if term.needs_critic)
            metrics["rl/critic_weight"] = of_critic / sum(abs(term.weight) for term in terms)
        if statistics is not None:
            metrics["rl/advantage_mean"] = statistics.mean
            metrics["rl/advantage_rms"] = statistics.rms
        return metrics

    def _lags(self) -> np.ndarray:
        """Count the updates between sampling a token and training on it; one entry per token."""
        trained_version = self.update.version - 1
        segments = [
            segment
            for group in self.groups
            for trajectory in group.trajectories
            for segment in trajectory.segments
        ]
        versions = [segment.version_of_token[segment.loss_mask] for segment in segments]
        return trained_version - np.concatenate(versions)


def evaluation_metrics(evaluation: Evaluation, seconds: float) -> dict[str, MetricValue]:
    """Return the metrics of an evaluation, by name."""
    return {
        **_by_word("rewards/held_out_pass_at_1", evaluation.pass_at_1),
        **_by_word("rewards/held_out_invalid", evaluation.invalid),
        "time/evaluate_seconds": seconds,
    }


def critic_metrics(statistics: CriticStatistics) -> dict[str, MetricValue]:
    """Return the metrics of a critic on trajectories that it had not trained on, by name."""
    return {
        "rl/critic_explained_variance": statistics.explained_variance,
        "rl/critic_calibration": statistics.calibration,
        "rl/critic_recognition": statistics.recognition,
        "rl/critic_loss": statistics.loss,
    }


def finite_or_none(value: float) -> float | None:
    """Write "not measured" as None: nan is no number that a file of metrics may hold."""
    return value if math.isfinite(value) else None


def _by_word(prefix: str, values: Mapping[str, float]) -> dict[str, MetricValue]:
    return {f"{prefix}/{word}": finite_or_none(value) for word, value in values.items()}
