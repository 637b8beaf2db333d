"""The learner: holds the policy's weights, updates them, and scores tokens under recent versions.

Takes batches, returns updates: each `step` is one optimizer update and makes the next policy
version. The model runs in float32. Where the engine captured which experts a token went to, the
forward replays that choice, so that engine and learner differ by rounding only.
"""

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from model import checkpoint
from model.balancing import QuantileBalancer
from model.expert_load import ExpertLoad
from model.hybrid import HybridForCausalLM
from model.logprobs import sequence_logprobs
from rl.batch import Batch, MicroBatch, lay_end_to_end, lay_supports
from rl.config import LearnerSection
from rl.loss import LossStatistics, load_loss
from rl.optimizer import Optimizer
from rl.presets import LossSettings
from rl.trust_region import with_sequence_log_ratios
from rollout.trajectory import Segment


class NonFiniteError(ArithmeticError):
    """The policy's log-probs of a trajectory are not finite; no weight has moved."""

    def __init__(self, trajectory_id: str | None) -> None:
        super().__init__(f"trajectory {trajectory_id!r} has log-probs that are not finite")
        self.trajectory_id = trajectory_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one optimizer update did."""

    version: int
    """Policy version that it made."""
    statistics: LossStatistics
    expert_load: ExpertLoad | None
    """Of the choices that were replayed; None where the engine recorded none."""
    grad_norm: float
    """Global norm before clipping."""
    learning_rate: float
    seconds: float


class Learner:
    """A policy under training; version `v` is the weights after `v` updates."""

    def __init__(
        self,
        model: HybridForCausalLM,
        learner: LearnerSection,
        loss: LossSettings,
        *,
        temperature: float,
        num_kept_versions: int,
    ) -> None:
        """Take over a model (`Learner.load` reads one from a checkpoint).

        Args:
            model: In float32.
            learner: Optimizer, size of a micro-batch, threads, whether experts are balanced.
            loss: Which loss.
            temperature: Sampling temperature of the trajectories, which divides the logits.
            num_kept_versions: How many versions, the current one included, `logprobs` can use.
        """
        self.version = 0
        self.temperature = temperature
        self._model = model
        self._section = learner
        self._loss_settings = loss
        self._loss = load_loss(loss.trust_region)
        self._optimizer = Optimizer(model.parameters(), learner)
        self._num_kept = num_kept_versions
        self._kept = {0: self.weights()}
        # A second instance scores under old versions, so that scoring never touches what trains.
        self._scorer = copy.deepcopy(model).requires_grad_(False)
        self._scorer_version = 0
        self._balancer = QuantileBalancer(model) if learner.balance_experts else None

    @classmethod
    def load(
        cls,
        folder: Path,
        learner: LearnerSection,
        loss: LossSettings,
        *,
        temperature: float,
        num_kept_versions: int,
    ) -> "Learner":
        """Read a checkpoint folder; sets the number of threads of this process.

        Raises:
            CheckpointError: the folder is missing or damaged.
        """
        torch.set_num_threads(learner.threads)
        model = checkpoint.load(folder)
        return cls(
            model, learner, loss, temperature=temperature, num_kept_versions=num_kept_versions
        )

    def weights(self) -> dict[str, Tensor]:
        """Copy the current weights: name to tensor, float32."""
        return {name: value.detach().clone() for name, value in self._model.state_dict().items()}

    def save(self, folder: Path) -> None:
        """Write the current weights as a checkpoint folder, in bfloat16."""
        checkpoint.save(self._model, folder)

    def step(self, batch: Batch) -> Update:
        """Make one update: gradients add up over micro-batches, divided by ONE global count.

        Args:
            batch: All samples of the step.

        Returns:
            The update; `version` has gone up by one.

        Raises:
            NonFiniteError: a trajectory's log-probs are not finite; weights and version stay.
            ArithmeticError: the gradient is not finite; weights and version stay.
        """
        started = time.monotonic()
        statistics = LossStatistics()
        for micro_batch in self._prepare(batch):
            statistics += self._accumulate(micro_batch, batch)
        learning_rate = self._optimizer.learning_rate
        grad_norm = self._optimizer.step()
        if self._balancer is not None:
            self._balancer.update()
        self.version += 1
        self._kept[self.version] = self.weights()
        self._kept.pop(self.version - self._num_kept, None)
        return Update(
            version=self.version,
            statistics=statistics,
            expert_load=measure_load(batch, self._model.config.shape.num_experts),
            grad_norm=grad_norm,
            learning_rate=learning_rate,
            seconds=time.monotonic() - started,
        )

    def logprobs(
        self, segments: Sequence[Segment], version: int, temperature: float
    ) -> list[Float32[np.ndarray, " T"]]:
        """Score segments under a recent version, captured experts and sampling masks replayed.

        Args:
            segments: At least one; laid end to end in one forward.
            version: One of the last `num_kept_versions`.
            temperature: Divides the logits.

        Returns:
            Log-probability of each token given those before it, nats; index 0 is 0.

        Raises:
            LookupError: the version is not kept.
        """
        if version not in self._kept:
            raise LookupError(f"version {version} is not kept: there are {sorted(self._kept)}")
        scorer = self._scorer_at(version)
        token_ids, cu_seqlens, expert_ids = lay_end_to_end(segments)
        with torch.no_grad():
            logprobs, _ = sequence_logprobs(
                scorer,
                token_ids,
                cu_seqlens,
                temperature,
                expert_ids,
                support=lay_supports(segments),
            )
        bounds = [int(bound) for bound in cu_seqlens[1:-1]]
        return np.split(logprobs.numpy(), bounds)

    def snapshot(self) -> HybridForCausalLM:
        """Return the current weights in a model that is there to be read, not trained."""
        return self._scorer_at(self.version)

    def _scorer_at(self, version: int) -> HybridForCausalLM:
        if version != self._scorer_version:
            self._scorer.load_state_dict(self._kept[version])
            self._scorer_version = version
        return self._scorer

    def _prepare(self, batch: Batch) -> Sequence[MicroBatch]:
        """Add what the loss needs of whole trajectories, whose segments may lie apart."""
        if self._loss_settings.trust_region != "gspo":
            return batch.micro_batches
        with torch.no_grad():
            model = self.snapshot()
            scored = [self._score(model, micro_batch)[0] for micro_batch in batch.micro_batches]
        return with_sequence_log_ratios(batch.micro_batches, scored, self._loss_settings)

    def _accumulate(self, part: MicroBatch, batch: Batch) -> LossStatistics:
        """Add one micro-batch's share of the gradient."""
        logprobs, entropy = self._score(self._model, part)
        is_bad = ~torch.isfinite(logprobs.detach())
        if bool(is_bad.any()):
            number = int(part.trajectories[is_bad][0])
            raise NonFiniteError(batch.trajectory_ids[number])
        losses = self._loss(logprobs, part, self._loss_settings)
        ((losses * part.weights).sum() / batch.denominator).backward()
        return LossStatistics.measure(losses, logprobs, entropy, part, self._loss_settings)

    def _score(self, model: HybridForCausalLM, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Score the tokens that train: log-probs and entropies, [T]."""
        return sequence_logprobs(
            model,
            batch.token_ids,
            batch.cu_seqlens,
            self.temperature,
            batch.expert_ids,
            scored=batch.loss_mask,
            support=batch.support,
        )


def measure_load(batch: Batch, num_experts: int) -> ExpertLoad | None:
    """Count the experts that the engine chose for a step's tokens; None if it recorded none."""
    recorded = [part.expert_ids for part in batch.micro_batches if part.expert_ids is not None]
    return ExpertLoad.of(torch.cat(recorded), num_experts) if recorded else None
