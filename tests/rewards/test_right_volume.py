"""The grader of the long reading: the right volume, and read to its end."""

import random

from envs.environment import Split
from envs.episode import Episode, StopReason
from envs.long_reading import SPEC, VOLUMES, make_expert, make_tasks
from envs.play import play
from envs.soundness import CheckLimits
from rewards.check import prove
from rewards.reward import Scored
from rewards.right_volume import grade

TASK = make_tasks(Split.TRAIN)[0]


def make_episode(**artifacts) -> Episode:
    return Episode(task=TASK, messages=(), stop=StopReason.FINISHED, artifacts=artifacts)


async def test_only_the_volume_of_the_reference_pays():
    assert await grade(make_episode(volume=TASK.reference["volume"])) == Scored(value=1.0)
    assert await grade(make_episode(volume="novel")) == Scored(value=0.0)


async def test_an_episode_that_ends_before_its_volume_scores_zero():
    right = next(
        make_expert(TASK, random.Random(seed))
        for seed in range(100)
        if random.Random(seed).choice(VOLUMES) == TASK.reference["volume"]
    )
    episode = await play(SPEC, TASK, right, max_turns=100)
    assert episode.stop is StopReason.MAX_TURNS
    assert await grade(episode) == Scored(value=0.0)


async def test_the_environment_and_its_grader_fit_together():
    limits = CheckLimits(num_tasks=2, max_turns=101)  # the choice and 100 leaves
    assert (await prove(SPEC, limits=limits)).failures == []


async def test_every_task_is_solved_by_chance_within_the_attempts_of_the_check():
    for split in Split:
        for task in make_tasks(split):
            sources = [
                random.Random(f"{task.id} {i}") for i in range(CheckLimits().expert_attempts)
            ]
            volumes = [source.choice(VOLUMES) for source in sources]
            assert task.reference["volume"] in volumes, task.id
