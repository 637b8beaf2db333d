"""The loop: collect, credit, update, publish. It reads in one screen, at the end of `train`.

    GroupBuffer --groups--> assign_credit --samples--> pack --batch--> Learner.step
        ^                                                                   |
        | release(version): groups of a later step start                    | next version
        |                                                                   v
    Collector <---------------------- publish: weights, checksums ----------+

Who waits for whom: `take` waits for the groups of this step, which have been running since
`max_lag` versions ago. The learner computes in a thread, so collection goes on meanwhile. `publish`
waits for every engine's acknowledgement, and only then do the groups of a later step start. The
monitor compares engine and learner after that, beside the collection that has just started.
"""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

from rl.batch import Sample
from rl.collect import plan_training, start_collector
from rl.config import RunConfig
from rl.credit import assign_credit
from rl.group_buffer import GroupBuffer, PlannedGroup
from rl.learner import Learner
from rl.monitor import Monitor
from rl.packing import pack
from rl.presets import resolve
from rl.progress import Progress
from rl.publish import publish
from rl.run import Run, RunResult
from rollout.tokenizer import FILE_NAME as TOKENIZER
from rollout.trajectory import Group


class NoSampleError(RuntimeError):
    """A step brought nothing to learn from: no group has two members with a score."""


async def train(config: RunConfig, run: Run, progress: Progress) -> RunResult:
    """Improve a policy by reinforcement learning.

    Args:
        config: The run.
        run: Open run folder; gets every step, evaluation and checkpoint.
        progress: Is told what goes on.

    Returns:
        Held-out pass@1 before and after, and what the steps amount to.

    Raises:
        ValueError: the checkpoint, an environment or a task file is bad.
        EngineError: the engines do not start, or one fails.
        PublishError: an engine does not hold the weights that were sent.
        NoSampleError: a step brought nothing to learn from.
        ArithmeticError: a gradient is not finite.
    """
    size = config.credit.groups_per_step
    plan = plan_training(config, config.run.steps * size)
    learner = load_learner(config)
    monitor = Monitor(run, progress, learner)
    progress.stage("starting the engines")
    async with start_collector(config, config.model.checkpoint, run.engine_logs) as collector:

        async def collect(planned: PlannedGroup) -> Group:
            members = config.credit.group_size
            return await collector.collect_group(planned.task, members, planned.round)

        await publish(learner, collector, config.publish)
        await monitor.evaluate(0, collector)
        async with GroupBuffer(collect, plan, size, config.rollout.max_lag) as buffer:
            buffer.release(learner.version)
            for step in range(config.run.steps):
                groups = await buffer.take(step)
                monitor.watch.lap("collect_wait")
                samples = assign_credit(groups, config.credit)  # Group -> Sample: advantages
                require_samples(samples, groups)
                batch = pack(samples, config.learner.max_batch_tokens)  # Sample -> Batch: tensors
                update = await asyncio.to_thread(learner.step, batch)  # Batch -> next version
                monitor.watch.lap("learn")
                publication = await publish(learner, collector, config.publish)
                monitor.watch.lap("publish")
                buffer.release(learner.version)
                names = [planned.environment for planned in plan[step * size : (step + 1) * size]]
                await monitor.record_step(
                    names, groups, len(samples), update, publication, collector
                )
                if is_due(config.evaluate.every_steps, step + 1, config.run.steps):
                    await monitor.evaluate(step + 1, collector)
                if is_due(config.checkpoint.every_steps, step + 1, config.run.steps):
                    save_checkpoint(learner, config, run.checkpoint_folder(step + 1))
        save_checkpoint(learner, config, run.checkpoint_folder(config.run.steps))
        await monitor.evaluate(config.run.steps, collector)
    return monitor.result(run.checkpoint_folder(config.run.steps))


def load_learner(config: RunConfig) -> Learner:
    """Read the checkpoint of the configuration.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    return Learner.load(
        config.model.checkpoint,
        config.learner,
        resolve(config.credit, config.loss).loss,
        temperature=config.rollout.temperature,
        # The oldest version that a checked token can have is max_lag behind the one that trained.
        num_kept_versions=config.rollout.max_lag + 2,
    )


def save_checkpoint(learner: Learner, config: RunConfig, folder: Path) -> None:
    """Write the current weights, with the tokenizer they were trained with."""
    learner.save(folder)
    shutil.copyfile(config.model.checkpoint / TOKENIZER, folder / TOKENIZER)


def is_due(every_steps: int, step: int, num_steps: int) -> bool:
    """Tell whether something that happens every so many steps happens after this one.

    After the last step it is never due: what belongs at the end of a run happens there anyway.
    """
    return every_steps > 0 and step % every_steps == 0 and step < num_steps


def require_samples(samples: Sequence[Sample], groups: Sequence[Group]) -> None:
    """Stop a run that has nothing to learn from.

    Raises:
        NoSampleError: there is no sample; the line counts the reasons.
    """
    if samples:
        return
    members = [member for group in groups for member in group.trajectories]
    reasons = sorted({member.invalid.reason for member in members if member.invalid is not None})
    raise NoSampleError(
        f"none of {len(groups)} groups has two episodes with a score: {', '.join(reasons)}"
    )
