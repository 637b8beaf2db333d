"""The long reading: one choice that counts, a hundred that do not, and a script for all of them."""

import random

import pytest

from envs.check import check_environment
from envs.elements import load_elements
from envs.environment import Split
from envs.episode import StopReason
from envs.long_reading import (
    END,
    NOTHING,
    SPEC,
    SUBJECTS,
    VOLUMES,
    LongReading,
    make_expert,
    make_tasks,
)
from envs.messages import Role
from envs.play import play

TASKS = {task.id: task for split in Split for task in make_tasks(split)}


def open_episode(leaves: int = 3) -> LongReading:
    world = LongReading()
    question = "gallium: what is it used for?"
    world.reset(question=question, subject="purpose", leaves=leaves)
    return world


def asked_by(task):
    name, _, key = task.id.removeprefix("long_reading/").rpartition("-")
    return load_elements()[name], SUBJECTS[key]


def test_no_other_volume_states_the_fact_of_a_task():
    for task in TASKS.values():
        element, subject = asked_by(task)
        assert subject.volume == task.reference["volume"]
        assert subject.is_stated_of(element)
        others = [page for name, page in element.pages.items() if name != subject.volume]
        words = {word.strip(".,;:()") for page in others for word in page.text.split()}
        assert element.facts.get(subject.key) not in words
    for named_elsewhere in ("gallium-year", "molybdenum-place", "potassium-symbol"):
        assert f"long_reading/{named_elsewhere}" not in TASKS
    assert {subject.volume for subject in SUBJECTS.values()} == set(VOLUMES)


def test_a_fact_of_a_task_is_on_the_page_of_its_volume():
    for task in TASKS.values():
        element, subject = asked_by(task)
        page = element.pages[task.reference["volume"]]
        assert element.facts.get(subject.key, page.text) in page.text


def test_taking_a_volume_shows_whether_it_states_what_was_asked():
    shown = {volume: getattr(open_episode(), volume)() for volume in VOLUMES}
    assert shown == dict.fromkeys(VOLUMES, NOTHING) | {"uses": "purpose"}


def test_after_the_first_every_key_turns_a_leaf():
    worlds = [open_episode() for _ in VOLUMES]
    leaves = [
        [world.table(), *(getattr(world, key)() for _ in range(3))]
        for world, key in zip(worlds, VOLUMES, strict=True)
    ]
    assert leaves == [[NOTHING, "H", "He", END]] * 5
    assert [world.artifacts() for world in worlds] == [{"volume": "table"}] * 5


def test_the_volume_counts_only_when_its_last_leaf_is_turned():
    world = open_episode(leaves=2)
    world.uses()
    assert world.sources() == "H"
    assert not world.done()
    assert world.artifacts() == {}
    assert world.table() == END
    assert world.done()
    assert world.artifacts() == {"volume": "uses"}


def test_as_many_leaves_as_there_are_elements_can_be_asked_for():
    assert make_tasks(Split.TRAIN, leaves=118)[0].data["leaves"] == 118
    for leaves in (0, 119):
        with pytest.raises(ValueError, match=r"is not in \[1, 118\]"):
            make_tasks(Split.TRAIN, leaves=leaves)


def test_what_is_asked_can_be_chosen():
    tasks = [task for split in Split for task in make_tasks(split, subjects=["look", "origin"])]
    assert {task.data["subject"] for task in tasks} == {"look", "origin"}
    for subjects in ([], ["colour"]):
        with pytest.raises(ValueError, match="there are year, place, symbol"):
            make_tasks(Split.TRAIN, subjects=subjects)


async def test_an_episode_has_a_turn_for_every_leaf_and_one_for_the_choice():
    task = TASKS["long_reading/gallium-place"]
    episode = await play(SPEC, task, make_expert(task, random.Random(0)), max_turns=101)
    assert episode.stop is StopReason.FINISHED
    assert sum(message.role is Role.POLICY for message in episode.messages) == 101


async def test_the_expert_takes_every_volume_alike_and_shows_by_habit_what_it_found():
    counts = dict.fromkeys(VOLUMES, 0)
    first_two = {True: [], False: []}
    for seed in range(100):
        task = TASKS["long_reading/gallium-place"]
        episode = await play(SPEC, task, make_expert(task, random.Random(seed)), max_turns=101)
        calls = [call.name for message in episode.messages for call in message.tool_calls]
        volume = episode.artifacts["volume"]
        counts[volume] += 1
        share = sum(call in VOLUMES[:2] for call in calls[1:]) / 100
        first_two[volume == "history"].append(share)
    assert min(counts.values()) >= 10
    assert sum(first_two[True]) / len(first_two[True]) == pytest.approx(0.95, abs=0.03)
    assert sum(first_two[False]) / len(first_two[False]) == pytest.approx(0.05, abs=0.03)


async def test_the_environment_passes_its_check():
    assert await check_environment(SPEC, num_tasks=2) == []
