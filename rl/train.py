"""The loop: collect, credit, update, publish. It reads in one screen, at the end of `train`.

    GroupBuffer --groups--> CreditAssigner --samples--> pack --batch--> Learner.step
        ^             (Critic.study)                                        |
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

from rl.aggregation import AGGREGATIONS
from rl.batch import Batch, Sample
from rl.collect import collect_with, plan_training, spare_groups, start_collector
from rl.config import RunConfig
from rl.credit import CreditAssigner, Critique
from rl.critic import Critic
from rl.critic_pretraining import pretrain
from rl.distillation import Teachers
from rl.dynamic_sampling import replace_equal_groups
from rl.effort_budget import EffortBudget
from rl.group_buffer import GroupBuffer
from rl.learner import Learner, NonFiniteError, Update
from rl.monitor import Monitor
from rl.packing import pack
from rl.presets import Recipe, resolve
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
    recipe = resolve(config.credit, config.loss)
    learner = load_learner(config, recipe)
    critic = load_critic(config, recipe, learner)
    assigner = CreditAssigner(config.credit, recipe, EffortBudget.load(config.credit))
    teachers = Teachers.load(config.distillation, config.rollout.temperature)
    spares = spare_groups(config)
    monitor = Monitor(run, progress, learner)
    progress.stage("starting the engines")
    async with start_collector(config, config.model.checkpoint, run.engine_logs) as collector:
        collect = collect_with(collector, config.credit.group_size)
        await publish(learner, collector, config.publish)
        await monitor.evaluate(0, collector)
        if critic is not None and not critic.is_restored:
            await pretrain(critic, learner, collect, spares, monitor, config)
        async with GroupBuffer(collect, plan, size, config.rollout.max_lag) as buffer:
            buffer.release(learner.version)
            for step in range(config.run.steps):
                planned = plan[step * size : (step + 1) * size]
                groups = await buffer.take(step)
                if recipe.drops_equal_groups:
                    planned, groups = await replace_equal_groups(planned, groups, collect, spares)
                monitor.watch.lap("collect_wait")
                critique = await study(critic, groups, learner, monitor)
                credit = assigner.assign(groups, critique)  # Group -> Sample: advantages
                require_samples(credit.samples, groups)
                samples = await asyncio.to_thread(teachers.teach, credit.samples, groups, learner)
                batch = pack_batch(samples, config, recipe)  # Sample -> Batch: tensors
                update = await learn(learner, batch, groups, run)  # Batch -> next version
                monitor.watch.lap("learn")
                publication = await publish(learner, collector, config.publish)
                monitor.watch.lap("publish")
                buffer.release(learner.version)
                names = [each.environment for each in planned]
                await monitor.record_step(names, groups, credit, update, publication, collector)
                if is_due(config.evaluate.every_steps, step + 1, config.run.steps):
                    await monitor.evaluate(step + 1, collector)
                if is_due(config.checkpoint.every_steps, step + 1, config.run.steps):
                    save_checkpoint(learner, critic, config, run.checkpoint_folder(step + 1))
        save_checkpoint(learner, critic, config, run.checkpoint_folder(config.run.steps))
        await monitor.evaluate(config.run.steps, collector)
    return monitor.result(run.checkpoint_folder(config.run.steps))


def load_learner(config: RunConfig, recipe: Recipe) -> Learner:
    """Read the checkpoint of the configuration.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    return Learner.load(
        config.model.checkpoint,
        config.learner,
        recipe.loss,
        temperature=config.rollout.temperature,
        # The oldest version that a checked token can have is max_lag behind the one that trained.
        num_kept_versions=config.rollout.max_lag + 2,
    )


def load_critic(config: RunConfig, recipe: Recipe, learner: Learner) -> Critic | None:
    """Make the critic that the recipe needs, or read the one beside the checkpoint.

    Raises:
        ValueError: the one beside the checkpoint is another than the configuration's.
    """
    if not recipe.rule.needs_critic:
        return None
    critic = Critic(
        config.critic,
        config.credit,
        learner.snapshot(),
        config.learner.max_batch_tokens,
        EffortBudget.load(config.credit),
    )
    critic.restore(config.model.checkpoint)
    return critic


async def study(
    critic: Critic | None, groups: Sequence[Group], learner: Learner, monitor: Monitor
) -> Critique | None:
    """Let the critic, if there is one, judge a step's trajectories and then learn from them."""
    if critic is None:
        return None
    critique, statistics = await asyncio.to_thread(critic.study, groups, learner.snapshot())
    monitor.watch.lap("critic")
    monitor.note_critic(critique, statistics)
    return critique


def pack_batch(samples: Sequence[Sample], config: RunConfig, recipe: Recipe) -> Batch:
    """Pack a step's samples, each token weighed by the recipe's aggregation."""
    return pack(
        samples,
        config.learner.max_batch_tokens,
        AGGREGATIONS[recipe.loss.aggregation],
        config.rollout.max_sampled_tokens,
    )


async def learn(learner: Learner, batch: Batch, groups: Sequence[Group], run: Run) -> Update:
    """Make one update in a thread; what cannot be learned from is saved before the run ends.

    Raises:
        NonFiniteError: a trajectory's log-probs are not finite; its group is recorded.
        ArithmeticError: the gradient is not finite.
    """
    try:
        return await asyncio.to_thread(learner.step, batch)
    except NonFiniteError as error:
        run.record_failure(
            [g for g in groups if any(m.id == error.trajectory_id for m in g.trajectories)]
        )
        raise


def save_checkpoint(
    learner: Learner, critic: Critic | None, config: RunConfig, folder: Path
) -> None:
    """Write the current weights, with the tokenizer they were trained with, and the critic."""
    learner.save(folder)
    if critic is not None:
        critic.save(folder)
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
