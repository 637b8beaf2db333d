"""Every metric of a run, declared once: its name, unit, meaning, and what it is taken over.

Names are `<folder>/<quantity>`; a part in braces (`{environment}`, `{reason}`) stands for one word
of the run. Lower folders return statistics and never name a metric; logging an undeclared name
raises. The JSON lines in the run folder are the truth, and every other display reads them.

Takes the values of a step or an evaluation, returns lines of `metrics.jsonl`:

    {"kind": "step", "step": 3, "rewards/mean": 0.41, "rl/loss": -0.02, ...}
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

STEP = "step"
"""Kind of a line that describes one optimizer update."""
EVALUATION = "evaluation"
"""Kind of a line that describes one held-out evaluation."""
PRETRAINING = "pretraining"
"""Kind of a line that describes one step in which the critic alone was trained."""

MetricValue = float | int | None
"""None: not measured in this step, which is not zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One declared quantity."""

    name: str
    """`<folder>/<quantity>`, with `{word}` for a part that the run fills in."""
    unit: str
    meaning: str
    over: str
    """The mask and the denominator: which tokens, episodes or seconds it is taken over."""


def _metric(name: str, unit: str, meaning: str, over: str) -> Metric:
    return Metric(name=name, unit=unit, meaning=meaning, over=over)


_SCORED = "scored trajectories of the batch (Invalid ones left out)"
_TURNS = "turns of the scored trajectories of the batch"
_SAMPLED = "POLICY tokens of the batch"
_LEARNED = "POLICY tokens of the packed batch, all micro-batches"
_ROUTED = "tokens of the packed batch whose experts the engine recorded, prompts included"
_SAME_VERSION = "POLICY tokens whose whole prefix was computed under one version, checked sample"
_PROBE = "tokens of the fixed probe trajectories, after the publish, temperature 1"

METRICS: tuple[Metric, ...] = (
    _metric("rewards/mean", "score", "mean reward", _SCORED),
    _metric("rewards/pass_rate/{environment}", "share", "rewards of exactly 1", _SCORED),
    _metric("rewards/mean/{environment}", "score", "mean reward in one environment", _SCORED),
    _metric("rewards/invalid/{reason}", "episodes", "outcomes without a score", "the batch"),
    _metric("rewards/held_out_pass_at_1/{environment}", "share", "rewards of exactly 1, one "
            "attempt a task", "scored held-out trajectories"),
    _metric("rewards/held_out_invalid/{reason}", "episodes", "held-out outcomes without a score",
            "the evaluation"),
    _metric("rollout/tokens_per_second", "tokens/s", "sampled tokens per second of collection",
            "sampled tokens of the batch / wall time since the batch before was complete"),
    _metric("rollout/sampled_tokens", "tokens", "tokens that the policy wrote", _SAMPLED),
    _metric("rollout/turns_mean", "turns", "policy messages per episode", "episodes of the batch"),
    _metric("rollout/recomputed_token_ratio", "ratio", "tokens the engine computed (prefill and "
            "decode) per token of the trajectories; publishes counted apart",
            "all tokens of the batch's trajectories"),
    _metric("rollout/publish_recomputed_tokens", "tokens", "tokens recomputed because a publish "
            "ordered it", "the run so far"),
    _metric("rollout/mixed_version_tokens", "tokens", "POLICY tokens after the first change of "
            "version inside their segment", _SAMPLED),
    _metric("rollout/lag_mean", "updates", "learner version minus the version that sampled the "
            "token", _SAMPLED),
    _metric("rollout/lag_max", "updates", "largest such difference", _SAMPLED),
    _metric("rl/loss", "nats", "policy loss plus penalty", _LEARNED),
    _metric("rl/grad_norm", "norm", "global gradient norm before clipping", "all parameters"),
    _metric("rl/entropy", "nats", "entropy of the policy's next-token distribution", _LEARNED),
    _metric("rl/ratio_masked_fraction", "share", "tokens outside the ratio band: no policy "
            "gradient", _LEARNED),
    _metric("rl/log_ratio_abs_mean", "nats", "|policy minus behavior log-prob|", _LEARNED),
    _metric("rl/effective_sample_size", "share", "(sum r)^2 / (n sum r^2) of the token ratios r",
            _LEARNED),
    _metric("rl/advantage_mean", "score", "mean advantage; far from 0: the critic is wrong in one "
            "direction", _TURNS),
    _metric("rl/advantage_rms", "score", "root mean square of the advantages", _TURNS),
    _metric("rl/critic_weight", "share", "weight of the terms that use the critic, of all terms; "
            "0: credit has fallen back to a rule without it", "the step's terms"),
    _metric("rl/critic_explained_variance", "share", "1 - variance of the critic's error / "
            "variance of what came after, before it trains on them", _TURNS),
    _metric("rl/critic_calibration", "score", "|mean value - mean outcome| among turns of like "
            "value, before the critic trains on them", _TURNS),
    _metric("rl/critic_recognition", "share", "part of an episode after which half of the critic's "
            "first surprise is gone for good", "trajectories with a surprise of 0.1 or more"),
    _metric("rl/critic_loss", "nats", "loss of the last critic step (squares under mse)",
            "turns of the last steps"),
    _metric("rl/learning_rate", "1", "step size of the update", "the update"),
    _metric("rl/samples", "trajectories", "trajectories that trained: a valid reward and a "
            "non-empty group", "the batch"),
    _metric("rl/logprob_gap_mean", "nats", "mean |engine minus learner log-prob| under the same "
            "version", _SAME_VERSION),
    _metric("rl/logprob_gap_max", "nats", "largest such gap", _SAME_VERSION),
    _metric("rl/probe_gap_mean", "nats", "mean |engine minus learner log-prob| of the probe",
            _PROBE),
    _metric("rl/probe_gap_max", "nats", "largest such gap", _PROBE),
    _metric("model/load_violation/{layer}", "ratio", "tokens of the busiest expert / mean over the "
            "experts - 1, in one layer with experts, from 0", _ROUTED),
    _metric("model/dead_experts/{layer}", "experts", "experts without a token, in one layer with "
            "experts, from 0", _ROUTED),
    _metric("publish/seconds", "s", "from the learner's weights to the last acknowledgement",
            "the publish"),
    _metric("publish/bytes", "bytes", "size of the weights sent", "the publish"),
    _metric("time/step_seconds", "s", "wall time of the whole step", "the step"),
    _metric("time/collect_wait_seconds", "s", "the learner waits for groups", "the step"),
    _metric("time/critic_seconds", "s", "the critic judges and learns", "the step"),
    _metric("time/learn_seconds", "s", "forward, backward and update", "the step"),
    _metric("time/agreement_seconds", "s", "scoring for the log-prob gaps", "the step"),
    _metric("time/publish_seconds", "s", "the learner waits for the publish", "the step"),
    _metric("time/evaluate_seconds", "s", "wall time of a held-out evaluation", "the evaluation"),
)  # fmt: skip


class UndeclaredMetricError(LookupError):
    """A name that is not in `METRICS` was logged."""


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], Metric], ...]:
    # Braces are the only special characters of a declared name.
    return tuple(
        (re.compile(re.sub(r"\{\w+\}", r"[^/]+", metric.name)), metric) for metric in METRICS
    )


def declared(name: str) -> Metric:
    """Return the declaration that `name` falls under.

    Raises:
        UndeclaredMetricError: no declaration fits.
    """
    for pattern, metric in _patterns():
        if pattern.fullmatch(name):
            return metric
    raise UndeclaredMetricError(f"{name!r} is not declared in rl/metrics.py")


class MetricsLog:
    """Appends lines to a `metrics.jsonl`; each line is on disk before `write` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, kind: str, step: int, values: Mapping[str, MetricValue]) -> None:
        """Append one line.

        Raises:
            UndeclaredMetricError: a name that is not in `METRICS`.
            ArithmeticError: a value that is not finite; None says "not measured".
        """
        for name, value in values.items():
            declared(name)
            if value is not None and not math.isfinite(value):
                raise ArithmeticError(f"{name} is {value} at step {step}")
        line = json.dumps({"kind": kind, "step": step, **values}, allow_nan=False)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def read_metrics(path: Path) -> list[dict[str, float | int | str | None]]:
    """Read the lines of a `metrics.jsonl`, oldest first; a torn last line is left out."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break  # only a line that a kill cut short: nothing was written after it
    return lines


def metrics_table() -> str:
    """Render `METRICS` as a Markdown table: what the README and the run report print."""
    rows = ["| metric | unit | meaning | taken over |", "| --- | --- | --- | --- |"]
    rows += [f"| `{m.name}` | {m.unit} | {m.meaning} | {m.over} |" for m in METRICS]
    return "\n".join(rows)
