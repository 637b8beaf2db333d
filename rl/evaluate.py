"""Held-out evaluation: one attempt at each of a fixed set of tasks that never train.

Takes a configuration and engines that hold some weights, returns pass@1 per environment.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envs.environment import Split
from envs.task import Task
from envs.task_sets import load_tasks
from rl.collect import start_collector
from rl.config import RunConfig
from rl.episode_scores import Scores
from rl.progress import Progress
from rollout.collector import Collector
from rollout.seeds import derive_seed
from rollout.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The outcome of one evaluation."""

    scores: Scores
    trajectories: tuple[Trajectory, ...]

    @property
    def pass_at_1(self) -> Mapping[str, float]:
        """Share of the scored episodes with full score, by environment; nan: none is scored."""
        return self.scores.pass_rate

    @property
    def standard_error(self) -> Mapping[str, float]:
        """Binomial standard error of `pass_at_1`."""
        return self.scores.standard_error

    @property
    def invalid(self) -> Mapping[str, int]:
        """Episodes without a score, by reason: they are in no pass rate."""
        return self.scores.invalid


def held_out_tasks(config: RunConfig) -> dict[str, list[Task]]:
    """Choose the tasks of every evaluation: the same ones before, after, and in every run.

    The choice depends on the environments and `evaluate.tasks_per_environment`, not on the run's
    seed, so that runs compare on the same tasks. Where there are fewer tasks, all are taken.

    Raises:
        ValueError: an environment has no held-out task, or its task file is bad.
    """
    chosen: dict[str, list[Task]] = {}
    for name, environment in config.environments.items():
        tasks = load_tasks(name, environment, Split.HELD_OUT)
        tasks.sort(key=lambda task: derive_seed("held-out", task.id))
        chosen[name] = tasks[: config.evaluate.tasks_per_environment]
    return chosen


async def evaluate_policy(
    collector: Collector, tasks: Mapping[str, Sequence[Task]], temperature: float
) -> Evaluation:
    """Let the engines attempt every task once, under the weights that they hold now.

    Args:
        collector: With engines up.
        tasks: By environment, as `held_out_tasks` chooses them.
        temperature: Of the sampling.
    """
    everything = [task for chosen in tasks.values() for task in chosen]
    names = [name for name, chosen in tasks.items() for _ in chosen]
    trajectories = await collector.evaluate(everything, temperature)
    return Evaluation(
        scores=Scores.of(list(zip(names, trajectories, strict=True))),
        trajectories=tuple(trajectories),
    )


async def evaluate(
    config: RunConfig, progress: Progress, checkpoint: Path, log_folder: Path
) -> Evaluation:
    """Start engines on a checkpoint, evaluate it, and end them: `limosa eval`.

    Args:
        config: Which environments, tasks and engines.
        progress: Is told what goes on.
        checkpoint: Folder of the weights.
        log_folder: Where engines and actors write their logs.

    Raises:
        ValueError: the checkpoint, an environment or a task file is bad.
        EngineError: the engines do not start, or one fails.
    """
    tasks = held_out_tasks(config)
    progress.stage("starting the engines")
    async with start_collector(config, checkpoint, log_folder) as collector:
        progress.stage(f"evaluating {sum(map(len, tasks.values()))} held-out tasks")
        return await evaluate_policy(collector, tasks, config.evaluate.temperature)
