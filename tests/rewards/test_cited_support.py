"""Right answers with a proof, and everything that is not one."""

import pytest

from envs.episode import Episode, StopReason
from envs.task import Task
from rewards.cited_support import grade

TASK = Task(
    id="t",
    environment="e",
    grader="cited_support",
    reference={
        "value": "1995-05-05",
        "statements": [["BCPL", "CPL"], ["BCPL", "TRIPOS"], ["TRIPOS", "1995-05-05"]],
        "documents": {
            "BCPL": "descended from {CPL}; runs on {TRIPOS}.",
            "TRIPOS": "A system.\n\n (1995-05-05)",
        },
    },
)


async def score(value, documents):
    artifacts = {"value": value, "documents": documents}
    episode = Episode(task=TASK, messages=(), stop=StopReason.FINISHED, artifacts=artifacts)
    return await grade(episode)


@pytest.mark.parametrize("documents", [["BCPL", "TRIPOS"], [" tripos", "bcpl", "Unix"]])
async def test_a_right_answer_with_all_that_proves_it_scores_1(documents):
    outcome = await score("1995-05-05", documents)
    assert outcome.value == 1.0
    assert outcome.parts == {"value_right": 1.0, "support": 1.0}


async def test_a_right_answer_without_a_step_of_its_proof_scores_0():
    outcome = await score("1995-05-05", ["TRIPOS"])
    assert outcome.value == 0.0
    assert outcome.parts["support"] == pytest.approx(1 / 3)


async def test_a_wrong_answer_with_the_right_documents_scores_0():
    outcome = await score("1995-05-06", ["BCPL", "TRIPOS"])
    assert outcome.value == 0.0
    assert outcome.parts == {"value_right": 0.0, "support": 1.0}


async def test_whoever_cites_everything_proves_nothing():
    everything = ["BCPL", "TRIPOS", *map(str, range(5))]
    assert (await score("1995-05-05", everything)).value == 0.0
    assert (await score("1995-05-05", everything[:-1])).value == 1.0


@pytest.mark.parametrize("documents", [[], "BCPL TRIPOS", None, {"BCPL": 1, "TRIPOS": 1}])
async def test_what_is_no_list_of_titles_cites_nothing(documents):
    assert (await score("1995-05-05", documents)).parts["support"] == 0.0


async def test_an_episode_without_an_answer_scores_0():
    episode = Episode(task=TASK, messages=(), stop=StopReason.MAX_TURNS)
    assert (await grade(episode)).value == 0.0
