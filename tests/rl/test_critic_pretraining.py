"""Pre-training: it ends at the plateau of what the critic explains, or at the bound."""

from types import SimpleNamespace

import pytest

from rl.config import RunConfig
from rl.critic_measures import CriticStatistics
from rl.critic_pretraining import pretrain


class Rising:
    """A critic whose explained variance follows a script."""

    def __init__(self, script):
        self.script = list(script)
        self.num_steps = 0

    def study(self, groups, policy):
        explained = self.script[min(self.num_steps, len(self.script) - 1)]
        self.num_steps += 1
        assert (len(groups), policy) == (3, "policy")
        if explained == "nothing":
            return None, None
        return None, CriticStatistics(
            explained_variance=explained, calibration=0.0, recognition=None, loss=0.0
        )


class Recorder:
    def __init__(self):
        self.steps = []

    def record_pretraining(self, step, groups, statistics):
        self.steps.append((step, statistics.explained_variance))


@pytest.mark.parametrize(
    ("script", "steps"),
    [
        ([-1.0, 0.2, 0.4, 0.3, 0.405, 0.2], 5),  # a rise of .005 is none
        ([0.1 * step for step in range(20)], 10),
        ([None, None, None], 2),
        ([0.5, "nothing", "nothing", 0.1, 0.1], 5),
    ],
    ids=["plateau", "bound", "equal outcomes", "no scores"],
)
async def test_it_ends_at_the_plateau_or_at_the_bound(script, steps):
    config = RunConfig.model_validate(
        {
            "model": {"checkpoint": "c"},
            "environments": {"echo": {}},
            "credit": {"type": "tb_gae", "groups_per_step": 3},
            "critic": {"pretrain_steps": 10, "pretrain_patience": 2},
        }
    )
    critic, recorder, asked = Rising(script), Recorder(), []

    async def collect(planned):
        asked.append(planned)
        return planned

    learner = SimpleNamespace(snapshot=lambda: "policy")
    await pretrain(critic, learner, collect, iter(range(1000)), recorder, config)
    assert critic.num_steps == steps
    assert asked == list(range(3 * steps))
