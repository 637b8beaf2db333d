"""The monitor: watches a training run and writes down what it sees.

Takes each finished step; compares engine and learner, evaluates held-out tasks, and hands metrics
and trajectories to the run folder and the progress display. Nothing here changes the policy.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rl.agreement import Agreement, check_probe, check_trajectories
from rl.config import RunConfig
from rl.credit import Credit, Critique
from rl.critic_measures import CriticStatistics
from rl.evaluate import Evaluation, evaluate_policy, held_out_tasks
from rl.learner import Learner, Update
from rl.presets import describe_term, resolve
from rl.progress import Progress
from rl.publish import Publication
from rl.run import Run, RunResult
from rl.step_record import StepRecord, Stopwatch, critic_metrics, evaluation_metrics
from rollout.collector import Collector
from rollout.group_statistics import summarize
from rollout.trajectory import Group, Segment, Trajectory

NUM_CHECKED_TRAJECTORIES = 16
"""Trajectories of a step whose log-probs are compared: under a second of the learner's time."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class RunTotals:
    """What the result of a run says about all of its steps."""

    logprob_gap_mean: float = 0.0
    """Largest mean gap of any step or probe, nats."""
    logprob_gap_max: float = 0.0
    """Largest gap of any token, nats."""
    computed_tokens: int = 0
    total_tokens: int = 0
    mixed_version_tokens: int = 0
    invalid: Counter[str] = field(default_factory=Counter)

    @property
    def recomputed_token_ratio(self) -> float:
        """Tokens the engines computed per token of the trajectories."""
        return self.computed_tokens / max(1, self.total_tokens)

    def add_groups(self, groups: Sequence[Group]) -> None:
        """Count the tokens and the invalid outcomes of one step."""
        statistics = summarize(groups)
        self.computed_tokens += statistics.computed_tokens
        self.total_tokens += statistics.total_tokens
        self.mixed_version_tokens += statistics.mixed_version_tokens
        self.invalid.update(statistics.invalid)

    def add_agreement(self, agreement: Agreement) -> None:
        """Take note of one comparison of engine and learner."""
        self.logprob_gap_mean = max(self.logprob_gap_mean, agreement.gap_mean or 0.0)
        self.logprob_gap_max = max(self.logprob_gap_max, agreement.gap_max)


class Monitor:
    """Watches one training run."""

    def __init__(self, run: Run, progress: Progress, learner: Learner) -> None:
        """Choose the held-out tasks.

        Raises:
            ValueError: an environment has no held-out task, or its task file is bad.
        """
        self._run = run
        self._config: RunConfig = run.config
        self._progress = progress
        self._learner = learner
        self._tasks = held_out_tasks(run.config)
        self._totals = RunTotals()
        self._evaluations: dict[int, Evaluation] = {}
        self._probe: list[Segment] = []
        self._critic: CriticStatistics | None = None
        self._is_fallen_back: bool | None = None
        self._started = time.monotonic()
        self.watch = Stopwatch()
        """Times the parts of the current step; an evaluation between two steps is in neither."""

    async def evaluate(self, step: int, collector: Collector) -> None:
        """Evaluate the weights after `step` updates, which the engines hold, and record it.

        The first evaluation also gives the probe, whose agreement is checked at once.
        """
        started = time.monotonic()
        self._progress.stage(f"evaluating {sum(map(len, self._tasks.values()))} held-out tasks")
        temperature = self._config.evaluate.temperature
        evaluation = await evaluate_policy(collector, self._tasks, temperature)
        metrics = evaluation_metrics(evaluation, time.monotonic() - started)
        self._evaluations[step] = evaluation
        self._run.record_evaluation(step, metrics, evaluation.trajectories)
        self._progress.evaluation(step, metrics)
        if not self._probe:
            size = self._config.publish.probe_trajectories
            self._probe = choose_probe(evaluation.trajectories, size)
            self._totals.add_agreement(await self._check_probe(collector))
        if step < self._config.run.steps:
            self._progress.stage("training")
        self.watch = Stopwatch()

    def record_pretraining(
        self, step: int, groups: Sequence[Group], statistics: CriticStatistics
    ) -> None:
        """Record a step in which the critic alone was trained."""
        scores = [m.reward for group in groups for m in group.trajectories if m.reward is not None]
        mean = sum(scores) / len(scores)
        self._run.record_pretraining(step, {"rewards/mean": mean, **critic_metrics(statistics)})
        explained = statistics.explained_variance
        shown = "nothing to explain" if explained is None else f"explained variance {explained:.2f}"
        self._progress.stage(f"pre-training the critic, step {step}: {shown}")
        self.watch = Stopwatch()

    def note_critic(self, critique: Critique, statistics: CriticStatistics | None) -> None:
        """Take note of what a step said of the critic, and say when credit does without it."""
        self._critic = statistics
        rule = resolve(self._config.credit, self._config.loss).rule
        explained = critique.errors.explained_variance
        weighed = rule.terms_at(critique.errors.foresight)
        is_fallen_back = not any(t.needs_critic and t.weight for t in weighed)
        if is_fallen_back != self._is_fallen_back:
            self._is_fallen_back = is_fallen_back
            share = "nothing yet" if explained is None else f"{explained:.2f} of the variance"
            terms = " + ".join(describe_term(t) for t in weighed if t.weight)
            text = f"the critic explains {share} of held-out outcomes: credit is {terms}"
            _log.info(text)
            self._progress.stage(text)

    async def record_step(
        self,
        environments: Sequence[str],
        groups: Sequence[Group],
        credit: Credit,
        update: Update,
        publication: Publication,
        collector: Collector,
    ) -> None:
        """Compare engine and learner, and record a step whose weights the engines hold now.

        Args:
            environments: Key of each group's environment.
            groups: What the step learned from.
            credit: The samples that it made of them, and the terms that did.
            update: The learner's.
            publication: The publish of the update.
            collector: Scores the probe.
        """
        trajectories = [member for group in groups for member in group.trajectories]
        gap = await asyncio.to_thread(
            check_trajectories, self._learner, trajectories, NUM_CHECKED_TRAJECTORIES
        )
        probe_gap = await self._check_probe(collector)
        self.watch.lap("agreement")
        record = StepRecord(
            step=update.version,
            environments=environments,
            groups=groups,
            credit=credit,
            critic=self._critic,
            update=update,
            publication=publication,
            trajectory_agreement=gap,
            probe_agreement=probe_gap,
            seconds=self.watch.finish(),
        )
        metrics = record.metrics()
        self._totals.add_groups(groups)
        self._totals.add_agreement(gap)
        self._totals.add_agreement(probe_gap)
        self._run.record_step(record.step, metrics, groups)
        self._progress.step(record.step, self._config.run.steps, metrics)

    def result(self, checkpoint: Path) -> RunResult:
        """Sum up the run; there is an evaluation before the first and after the last step."""
        totals = self._totals
        return RunResult(
            folder=self._run.folder,
            checkpoint=checkpoint,
            before=self._evaluations[0].pass_at_1,
            after=self._evaluations[self._config.run.steps].pass_at_1,
            steps=self._config.run.steps,
            wall_seconds=time.monotonic() - self._started,
            logprob_gap_mean=totals.logprob_gap_mean,
            logprob_gap_max=totals.logprob_gap_max,
            recomputed_token_ratio=totals.recomputed_token_ratio,
            mixed_version_tokens=totals.mixed_version_tokens,
            invalid=dict(totals.invalid),
        )

    async def _check_probe(self, collector: Collector) -> Agreement:
        return await check_probe(self._learner, collector.score, self._probe)


def choose_probe(trajectories: Sequence[Trajectory], count: int) -> list[Segment]:
    """Choose `count` recorded segments, evenly over the trajectories: over all environments."""
    segments = [segment for trajectory in trajectories for segment in trajectory.segments]
    stride = max(1, len(segments) // count)
    return segments[::stride][:count]
