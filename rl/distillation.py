r"""On-policy distillation: teachers say of every token that the policy wrote how they like it.

Takes samples, returns samples with another advantage. Kimi K3 (arXiv 2607.24653) merges experts
into one policy by the reward per token

    weight * clip( log pi_teacher(token) - log pi(token), -R, R )            no gradient in either

added to the advantage; its expectation over the policy's own tokens is minus the divergence from
the teacher. A teacher may answer for one environment or, as `*`, for all that have none of their
own; teachers share the policy's tokenizer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float32

from model import checkpoint
from model.hybrid import HybridForCausalLM
from model.logprobs import sequence_logprobs
from rl.batch import Sample, lay_end_to_end
from rl.config import DistillationSection
from rl.learner import Learner
from rollout.trajectory import Group, Segment

ANY = "*"
"""Key of the teacher of environments without one of their own."""


class Teachers:
    """Frozen policies that score tokens of others."""

    def __init__(
        self,
        models: Mapping[str, HybridForCausalLM],
        section: DistillationSection,
        temperature: float,
    ) -> None:
        """Take over models by environment; `Teachers.load` reads them from checkpoints."""
        self._models = models
        self._section = section
        self._temperature = temperature

    @classmethod
    def load(cls, section: DistillationSection, temperature: float) -> "Teachers":
        """Read the configured checkpoints.

        Raises:
            CheckpointError: a folder is missing or damaged.
        """
        folders = {folder: checkpoint.load(folder) for folder in set(section.teachers.values())}
        models = {name: folders[folder] for name, folder in section.teachers.items()}
        return cls(models, section, temperature)

    def teach(
        self, samples: Sequence[Sample], groups: Sequence[Group], learner: Learner
    ) -> list[Sample]:
        """Add the teachers' rewards to the advantages of samples.

        Args:
            samples: A step's.
            groups: Its groups, whose tasks say the environment.
            learner: Scores the tokens under the current policy.

        Returns:
            The samples, in order; one whose environment has no teacher stays as it is.
        """
        if not self._models:
            return list(samples)
        environments = {m.id: g.task.environment for g in groups for m in g.trajectories}
        return [
            self._teach_one(sample, environments.get(sample.trajectory_id or "", ANY), learner)
            for sample in samples
        ]

    def _teach_one(self, sample: Sample, name: str, learner: Learner) -> Sample:
        model = self._models.get(name, self._models.get(ANY))
        if model is None:
            return sample
        segment = sample.segment
        own = learner.logprobs([segment], learner.version, self._temperature)[0]
        bound = self._section.max_reward
        reward = np.clip(self._score(model, segment) - own, -bound, bound)
        added = np.where(segment.loss_mask, self._section.weight * reward, 0.0)
        return replace(sample, advantages=(sample.advantages + added).astype(np.float32))

    def _score(self, model: HybridForCausalLM, segment: Segment) -> Float32[np.ndarray, " T"]:
        # The experts that were recorded are the policy's: a teacher chooses its own.
        token_ids, cu_seqlens, _ = lay_end_to_end([segment])
        with torch.no_grad():
            logprobs, _ = sequence_logprobs(model, token_ids, cu_seqlens, self._temperature)
        return logprobs.numpy()
