"""The effort budget: who is over it, and what is read from an earlier collection."""

import dataclasses

import pytest

from rl.config import CreditSection, LossSection, RunConfig
from rl.credit import CreditAssigner
from rl.effort_budget import EffortBudget, read_effort
from rl.presets import resolve
from rl.run import Run


@pytest.fixture
def group(build_group, build_segment):
    """Siblings that wrote 2, 4 and 8 tokens."""
    segments = [build_segment(token_ids=range(2 + count)) for count in (2, 4, 8)]
    return build_group([1.0, 0.5, 1.0], segments=segments)


def rewards(group, tau, effort):
    budget = EffortBudget(effort=effort, tau=tau)
    return [budget.reward(member) for member in group.trajectories]


def test_what_takes_more_than_its_budget_has_failed(group):
    assert rewards(group, 2.0, {"task": 2.0}) == [1.0, 0.5, -1.0]
    assert rewards(group, 1.0, {"task": 2.0}) == [1.0, -1.0, -1.0]
    assert rewards(group, 1.0, {"other": 2.0}) == [1.0, 0.5, 1.0]


def test_without_a_score_nothing_is_said(build_group):
    assert rewards(build_group([None]), 0.1, {"task": 1.0}) == [None]


def test_the_budget_counts_in_the_baseline_of_the_siblings(group):
    section = CreditSection()
    budget = EffortBudget(effort={"task": 2.0}, tau=2.0)
    assigner = CreditAssigner(section, resolve(section, LossSection()), budget)
    first = assigner.assign([group]).samples[0]
    assert float(first.advantages[-1]) == pytest.approx(1.0 - (0.5 - 1.0) / 2)


def test_effort_is_the_mean_of_what_was_written_for_a_task(group, work_folder):
    config = RunConfig.model_validate(
        {
            "model": {"checkpoint": "checkpoint"},
            "environments": {"echo": {"use": "echo_world:SPEC"}},
        }
    )
    run = Run.create(config)
    again = dataclasses.replace(group, id="again", trajectories=group.trajectories[:1])
    run.record_collection([group, again])
    assert read_effort(run.folder) == {"task": pytest.approx((2 + 4 + 8 + 2) / 4)}
    section = CreditSection(effort_folder=run.folder, effort_tau=1.5)
    assert EffortBudget.load(section).tau == 1.5
    assert EffortBudget.load(CreditSection()).effort == {}


def test_a_folder_without_trajectories_is_one_clear_line(tmp_path):
    with pytest.raises(ValueError, match=r"credit\.effort_folder = .* holds no trajectories"):
        read_effort(tmp_path)
