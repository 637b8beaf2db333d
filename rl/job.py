"""The three verbs that start engines: train, collect, evaluate, for Python and the command line.

Takes a configuration, checks that it can run, opens a run folder, and returns the verb's result.
A run folder is made only for input that has been checked; an input error that shows only while the
engines start, before anything is recorded, takes the folder away again.
"""

import math
import os
import time
import traceback
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kernels.rows import SAME_ROWS
from rl.check import require_ready
from rl.checkpoint_files import check_checkpoint
from rl.config import RunConfig
from rl.doctor import FOLDERS
from rl.interrupt import hold_signals, run_to_end
from rl.progress import Progress, open_progress
from rl.run import Run, RunResult
from rollout.input_error import InputError
from rollout.trajectory import Group

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where a configuration came from: what the run folder keeps a copy of."""

    files: Sequence[Path] = ()
    overrides: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """Held-out pass@1 of one checkpoint."""

    folder: Path
    """Run folder with the trajectories."""
    checkpoint: Path
    pass_at_1: dict[str, float | None]
    """By environment; None where no episode has a score."""
    standard_error: dict[str, float | None]
    invalid: dict[str, int]
    """Episodes without a score, by reason."""

    def to_json(self) -> dict[str, object]:
        """Return plain values, the folder under the key `run`."""
        return {
            "run": str(self.folder),
            "checkpoint": str(self.checkpoint),
            "pass_at_1": self.pass_at_1,
            "standard_error": self.standard_error,
            "invalid": self.invalid,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionResult:
    """Trajectories that were collected without training."""

    folder: Path
    """Run folder with the trajectories."""
    groups: tuple[Group, ...]

    def to_json(self) -> dict[str, object]:
        """Return counts and the mean reward, the folder under the key `run`."""
        members = [member for group in self.groups for member in group.trajectories]
        rewards = [member.reward for member in members if member.reward is not None]
        return {
            "run": str(self.folder),
            "groups": len(self.groups),
            "trajectories": len(members),
            "scored": len(rewards),
            "reward_mean": sum(rewards) / len(rewards) if rewards else None,
            "sampled_tokens": sum(member.num_sampled for member in members),
        }


def train(config: RunConfig, sources: Sources | None = None) -> RunResult:
    """Improve a policy by reinforcement learning, and return what came of it.

    Worked example:

        import rl
        result = rl.train(rl.load_config("configs/quickstart.toml", overrides=["run.steps=4"]))
        print(result.before, result.after, result.checkpoint)

    Args:
        config: the run.
        sources: files and overrides that the run folder keeps a copy of.

    Raises:
        ValueError: something in the configuration cannot work; one line.
        KeyboardInterrupt: Ctrl-C; the run folder keeps what was recorded.
    """
    require_startable(config)
    with _open_job(config, sources) as (run, progress):
        from rl.train import train as train_policy

        result = _finish(train_policy(config, run, progress))
        run.finish(result.to_json())
    return result


def collect(
    config: RunConfig, num_groups: int = 8, sources: Sources | None = None
) -> CollectionResult:
    """Collect groups of training episodes with the configuration's checkpoint, without learning.

    Args:
        config: the run.
        num_groups: tasks; each is attempted `credit.group_size` times.
        sources: as for `train`.

    Raises:
        ValueError: something in the configuration cannot work; one line.
    """
    require_startable(config)
    with _open_job(config, sources) as (run, progress):
        from rl.collect import collect as collect_groups

        groups = _finish(collect_groups(config, num_groups, progress, run.engine_logs))
        run.record_collection(groups)
        result = CollectionResult(folder=run.folder, groups=tuple(groups))
        run.finish(result.to_json())
    return result


def evaluate(
    config: RunConfig, checkpoint: Path | None = None, sources: Sources | None = None
) -> EvaluationResult:
    """Attempt the held-out tasks once each.

    Args:
        config: the run.
        checkpoint: folder of the weights; None is `config.model.checkpoint`.
        sources: as for `train`.

    Raises:
        ValueError: something in the configuration cannot work; one line.
    """
    chosen = checkpoint or config.model.checkpoint
    check_checkpoint(chosen)
    config = config.model_copy(
        update={"model": config.model.model_copy(update={"checkpoint": chosen})}
    )
    require_startable(config)
    with _open_job(config, sources) as (run, progress):
        from rl.evaluate import evaluate as evaluate_checkpoint
        from rl.step_record import evaluation_metrics

        started = time.monotonic()
        evaluation = _finish(evaluate_checkpoint(config, progress, chosen, run.engine_logs))
        metrics = evaluation_metrics(evaluation, time.monotonic() - started)
        progress.evaluation(0, metrics)
        run.record_evaluation(0, metrics, evaluation.trajectories)
        result = EvaluationResult(
            folder=run.folder,
            checkpoint=chosen,
            pass_at_1={k: _finite_or_none(v) for k, v in evaluation.pass_at_1.items()},
            standard_error={k: _finite_or_none(v) for k, v in evaluation.standard_error.items()},
            invalid=dict(evaluation.invalid),
        )
        run.finish(result.to_json())
    return result


def require_startable(config: RunConfig) -> None:
    """Check all that can be checked in seconds: an engine takes many to find a fault.

    Raises:
        ValueError: the run cannot start, or the weights are not those of the model; one line.
    """
    require_ready(config)
    from model.checkpoint import require_loadable

    require_loadable(config.model.checkpoint)


@contextmanager
def _open_job(config: RunConfig, sources: Sources | None) -> Iterator[tuple[Run, Progress]]:
    """Open the run folder and the progress display; name the log in errors of the system."""
    os.environ |= SAME_ROWS  # before the learner's first product: its bits are to be the engine's
    sources = sources or Sources()
    with hold_signals() as release:
        run = Run.create(config, sources.files, sources.overrides)
        try:
            with run, open_progress() as progress:
                release()  # from here on, the run says how it ended
                yield run, progress
        except Exception as error:
            if is_about_input(error) and not run.has_records:
                run.discard()
                raise
            error.add_note(f"traceback in {run.log_path}")
            raise
        except KeyboardInterrupt as error:
            error.add_note(f"what was recorded is in {run.folder}")
            raise


def is_about_input(error: BaseException) -> bool:
    """Whether an error speaks of what the user gave: a ValueError that our own code raised.

    One that a library raised inside our code is a fault of the system, whatever its type. What
    comes from an actor has no traceback here, but a type (`InputError`).
    """
    if isinstance(error, InputError):
        return True
    if not isinstance(error, ValueError):
        return False
    frames = list(traceback.walk_tb(error.__traceback__))
    module = frames[-1][0].f_globals.get("__name__", "") if frames else ""
    return module.partition(".")[0] in FOLDERS


def _finish(work: Coroutine[Any, Any, Result]) -> Result:
    """Run the coroutine of a verb; Ctrl-C ends it, Ray and engines included."""
    return run_to_end(work)


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
