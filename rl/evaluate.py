"""Held-out evaluation: one attempt at each of a fixed set of tasks that never train.

Takes a configuration and engines that hold some weights, returns pass@1 per environment.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envs.environment import Split
from envs.task import Task
from envs.task_sets import load_tasks
from rl.config import RunConfig
from rl.progress import Progress
from rl.rollout_start import start_collector
from rollout.collector import Collector
from rollout.seeds import derive_seed
from rollout.trajectory import Trajectory

FULL_SCORE = 1.0
"""An episode passes with this score and no less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The outcome of one evaluation."""

    pass_at_1: Mapping[str, float]
    """Share of the scored episodes with full score, by environment; nan where none is scored."""
    standard_error: Mapping[str, float]
    """Binomial standard error of `pass_at_1`."""
    num_scored: Mapping[str, int]
    """Episodes with a score, by environment."""
    invalid: Mapping[str, int]
    """Episodes without a score, by reason: they are in no pass rate."""
    trajectories: tuple[Trajectory, ...]


def held_out_tasks(config: RunConfig) -> dict[str, list[Task]]:
    """Choose the tasks of every evaluation: the same ones before, after, and in every run.

    The choice depends on the environments and `evaluate.tasks_per_environment`, not on the run's
    seed, so that runs compare on the same tasks. Where there are fewer tasks, all are taken.

    Raises:
        ValueError: an environment has no held-out task, or its task file is bad.
    """
    return {
        name: _choose(name, load_tasks(name, environment, Split.HELD_OUT), config)
        for name, environment in config.environments.items()
    }


def _choose(name: str, tasks: Sequence[Task], config: RunConfig) -> list[Task]:
    if not tasks:
        raise ValueError(f"environment {name!r} has no held-out task")
    order = sorted(tasks, key=lambda task: derive_seed("held-out", task.id))
    return order[: config.evaluate.tasks_per_environment]


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
    trajectories = await collector.evaluate(everything, temperature)
    names = [name for name, chosen in tasks.items() for _ in chosen]
    return summarize_evaluation(list(zip(names, trajectories, strict=True)))


def summarize_evaluation(attempts: Sequence[tuple[str, Trajectory]]) -> Evaluation:
    """Compute the pass rates of attempts, each with the name of its environment."""
    passes: dict[str, list[bool]] = {name: [] for name, _ in attempts}
    for name, trajectory in attempts:
        if trajectory.reward is not None:
            passes[name].append(trajectory.reward >= FULL_SCORE)
    rates = {name: sum(each) / len(each) if each else math.nan for name, each in passes.items()}
    invalid = Counter(t.invalid.reason for _, t in attempts if t.invalid is not None)
    return Evaluation(
        pass_at_1=rates,
        standard_error={
            name: math.sqrt(rates[name] * (1 - rates[name]) / len(each)) if each else math.nan
            for name, each in passes.items()
        },
        num_scored={name: len(each) for name, each in passes.items()},
        invalid=invalid,
        trajectories=tuple(trajectory for _, trajectory in attempts),
    )


async def evaluate(
    config: RunConfig, progress: Progress, checkpoint: Path | None = None
) -> Evaluation:
    """Start engines on a checkpoint, evaluate it, and end them: `limosa eval`.

    Args:
        config: Which environments, tasks and engines.
        progress: Is told what goes on.
        checkpoint: Folder of the weights; None: the configuration's.

    Raises:
        ValueError: the checkpoint, an environment or a task file is bad.
        EngineError: the engines do not start.
    """
    tasks = held_out_tasks(config)
    progress.stage("starting the engines")
    async with start_collector(config, checkpoint or config.model.checkpoint) as collector:
        progress.stage(f"evaluating {sum(map(len, tasks.values()))} held-out tasks")
        return await evaluate_policy(collector, tasks, config.evaluate.temperature)
