"""Distillation: what a teacher adds to a token, and who is taught by whom."""

import numpy as np
import pytest

from rl.batch import Sample
from rl.config import DistillationSection
from rl.distillation import Teachers

PROMPT = 2


class Scripted:
    """A learner and a teacher in one: log-probs by name."""

    version = 3

    def __init__(self, logprobs):
        self._logprobs = np.array(logprobs, dtype=np.float32)

    def logprobs(self, segments, version, temperature):
        assert (version, temperature) == (3, 0.7)
        return [self._logprobs for _ in segments]


@pytest.fixture
def teach(build_group, monkeypatch):
    """Advantages after teaching one trajectory of four tokens with advantage 0.5."""
    monkeypatch.setattr(Teachers, "_score", lambda _, model, segment: model._logprobs)

    def run(models, environment="toy", **section):
        group = build_group([1.0], environment=environment)
        segment = group.trajectories[0].segments[0]
        advantages = segment.loss_mask * np.float32(0.5)
        sample = Sample(segment=segment, advantages=advantages, trajectory_id="task#0@0")
        teachers = Teachers(
            {name: Scripted(logprobs) for name, logprobs in models.items()},
            DistillationSection(**section),
            temperature=0.7,
        )
        learner = Scripted([0.0, -1.0, -1.0, -2.0])
        [taught] = teachers.teach([sample], [group], learner)
        return taught.advantages.tolist()

    return run


def test_a_teacher_adds_its_bounded_log_ratio_where_the_policy_wrote(teach):
    models = {"toy": [0.0, -9.0, -0.75, -9.0]}
    assert teach(models) == pytest.approx([0.0, 0.0, 0.75, -0.5])
    assert teach(models, max_reward=3.0, weight=0.1) == pytest.approx([0.0, 0.0, 0.525, 0.2])


def test_an_environment_has_its_own_teacher_or_the_one_of_all_or_none(teach):
    models = {"toy": [0.0, 0.0, 0.0, -2.0], "*": [0.0, 0.0, -1.0, -1.0]}
    assert teach(models, environment="toy") == pytest.approx([0, 0, 1.5, 0.5])
    assert teach(models, environment="other") == pytest.approx([0, 0, 0.5, 1.5])
    assert teach({"toy": models["toy"]}, environment="other") == pytest.approx([0, 0, 0.5, 0.5])
    assert teach({}) == pytest.approx([0, 0, 0.5, 0.5])
