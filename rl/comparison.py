"""The same run in several variants and seeds: whatever is missing is run, then curves are compared.

Takes files, overrides, variants (overrides of their own) and seeds; returns the held-out success of
each variant over the trajectories that it had collected. A finished run with the very same
configuration is not run again, so a comparison that was interrupted goes on where it ended, one
run after the other.

Variants are compared by their samples: on the way to the success that the first variant ends with,
how many trajectories did each of them need? Those that pre-trained a critic count.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from rl.config import RunConfig
from rl.config_loader import load_config
from rl.job import Sources, train
from rl.metrics import EVALUATION, PRETRAINING, read_metrics
from rl.run import Run, RunResult

_PASS_RATE = "rewards/held_out_pass_at_1/"


@dataclass(frozen=True, kw_only=True)
class Curve:
    """How a variant learned: held-out success over trajectories, for each seed.

    Raises:
        ValueError: shapes disagree, or the trajectories do not grow.
    """

    trajectories: Float64[np.ndarray, " N"]
    """Collected for training until each evaluation."""
    success: Float64[np.ndarray, "S N"]
    """Held-out pass@1, mean over the environments; one row a seed."""

    def __post_init__(self) -> None:
        if self.success.ndim != 2 or self.success.shape[1:] != self.trajectories.shape:
            raise ValueError(f"{self.trajectories.shape} points but {self.success.shape} successes")
        if (np.diff(self.trajectories) <= 0).any():
            raise ValueError("the number of trajectories does not grow")

    @property
    def mean(self) -> Float64[np.ndarray, " N"]:
        """Mean over the seeds."""
        return self.success.mean(axis=0)

    def trajectories_to(self, level: float) -> float | None:
        """Tell after how many trajectories the mean reaches a level; None: it never does.

        Between two evaluations the mean is taken to be a straight line.
        """
        mean = self.mean
        (reached,) = np.nonzero(mean >= level)
        if not len(reached):
            return None
        at = int(reached[0])
        if at == 0:
            return float(self.trajectories[0])
        share = (level - mean[at - 1]) / (mean[at] - mean[at - 1])
        gap = self.trajectories[at] - self.trajectories[at - 1]
        return float(self.trajectories[at - 1] + share * gap)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Variants side by side; the first is what the others are measured against."""

    curves: dict[str, Curve]
    """By variant."""

    @property
    def level(self) -> float:
        """Success that the first variant ends with, mean over the seeds."""
        return float(next(iter(self.curves.values())).mean[-1])

    @property
    def budget(self) -> float:
        """Trajectories that the first variant had for it."""
        return float(next(iter(self.curves.values())).trajectories[-1])

    def to_json(self) -> dict[str, object]:
        """Return plain values."""
        return {
            "level": self.level,
            "budget": self.budget,
            "variants": {
                name: {
                    "trajectories": curve.trajectories.tolist(),
                    "success": curve.success.tolist(),
                    "mean": curve.mean.tolist(),
                    "trajectories_to_level": curve.trajectories_to(self.level),
                }
                for name, curve in self.curves.items()
            },
        }


def compare(
    files: Sequence[Path],
    overrides: Sequence[str],
    variants: Sequence[str],
    seeds: Sequence[int],
    run: Callable[[RunConfig, Sources], RunResult] = train,
) -> Comparison:
    """Run what is missing, one run after the other, and compare.

    Args:
        files: Configuration files.
        overrides: `section.key=value`, of all variants.
        variants: Each is one or more overrides, joined by commas; the first is the standard.
        seeds: Values of `run.seed`.
        run: Makes one run.

    Raises:
        ValueError: no variant or seed, one is given twice, or the configuration is bad.
    """
    for name, values in (("variant", variants), ("seed", seeds)):
        if not values or len(set(values)) < len(values):
            raise ValueError(f"a comparison needs every {name} once, got {list(values)}")
    settings = {
        (variant, seed): [*overrides, *variant.split(","), f"run.seed={seed}"]
        for seed in seeds  # outermost: what ends early has all variants at the first seeds
        for variant in variants
    }
    configs = {key: load_config(files, given) for key, given in settings.items()}
    folders = {}
    for key, config in configs.items():
        folder = find_finished(config)
        if folder is None:
            folder = run(config, Sources(files=files, overrides=settings[key])).folder
        folders[key] = folder
    return Comparison(
        curves={
            variant: read_curve([folders[variant, seed] for seed in seeds]) for variant in variants
        }
    )


def find_finished(config: RunConfig) -> Path | None:
    """Find the latest finished run of a configuration, in the folder that it would run in."""
    summaries = sorted(config.run.folder.glob(f"{config.run.name}-*/summary.json"), reverse=True)
    for path in summaries:
        if json.loads(path.read_text(encoding="utf-8")).get("status") == "finished":
            try:
                recorded = Run.open(path.parent).config
            except ValueError:  # of another version of limosa: it is another run
                continue
            if recorded == config:
                return path.parent
    return None


def read_curve(folders: Sequence[Path]) -> Curve:
    """Read the runs of a variant, one a seed.

    Runs that spent more or less on a critic before they began were evaluated at other points: each
    is a line from point to point, and all are read at the points of any, as far as the shortest.
    """
    points = [dict(_read_points(Run.open(folder))) for folder in folders]
    end = min(max(each) for each in points)
    places = np.array(sorted({place for each in points for place in each if place <= end}))
    rows = [np.interp(places, sorted(each), [each[at] for at in sorted(each)]) for each in points]
    return Curve(trajectories=places, success=np.array(rows))


def _read_points(run: Run) -> Iterator[tuple[float, float]]:
    """Read (trajectories, success) of every evaluation; that before training costs nothing."""
    per_step = run.config.credit.groups_per_step * run.config.credit.group_size
    lines = read_metrics(run.metrics_path)
    spent = per_step * sum(line["kind"] == PRETRAINING for line in lines)
    for line in lines:
        rates = [value for name, value in line.items() if name.startswith(_PASS_RATE)]
        known = [rate for rate in rates if isinstance(rate, int | float)]
        if line["kind"] == EVALUATION and known:
            step = int(line["step"] or 0)
            yield float(step and spent + step * per_step), math.fsum(known) / len(known)
