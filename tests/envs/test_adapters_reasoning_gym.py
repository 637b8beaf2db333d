"""Real data sets of reasoning-gym, asked, answered and scored."""

import asyncio

import pytest

from envs.adapters.reasoning_gym import SPEC, make_tasks
from envs.config import EnvironmentConfig
from envs.environment import Split
from envs.messages import Message, Role, ToolCall
from envs.play import play
from rewards.check import check_rewards
from rewards.reasoning_gym_answer import grade
from rewards.reward import Scored


@pytest.mark.parametrize("dataset", ["chain_sum", "leg_counting"])
def test_the_checker_accepts_real_data_sets_and_their_answers_score_one(dataset):
    section = EnvironmentConfig(options={"dataset": dataset, "num_tasks": 60})
    assert asyncio.run(check_rewards(SPEC, section, num_tasks=3)) == []


def test_a_wrong_answer_scores_zero():
    task = make_tasks(Split.TRAIN, dataset="chain_sum", num_tasks=20)[0]
    call = ToolCall(name="answer", arguments={"text": "about a dozen"})
    action = Message(role=Role.POLICY, tool_calls=(call,))
    episode = asyncio.run(play(SPEC, task, lambda _: action))
    assert episode.artifacts == {"answer": "about a dozen"}
    assert asyncio.run(grade(episode)) == Scored(value=0.0)


def test_the_answer_is_not_in_what_the_environment_gets():
    for task in make_tasks(Split.TRAIN, dataset="leg_counting", num_tasks=20):
        assert set(task.data) == {"question"}


@pytest.mark.parametrize("dataset", ["simple_integration", "n_queens", "spiral_matrix"])
def test_a_scorer_that_would_run_the_answer_is_refused(dataset):
    with pytest.raises(ValueError, match="would run the policy's answer as code"):
        make_tasks(Split.TRAIN, dataset=dataset, num_tasks=2)


def test_that_refusal_is_needed(tmp_path):
    """The package's own scorer runs what the policy wrote: the attack works without us."""
    import reasoning_gym

    proof = tmp_path / "ran"
    questions = reasoning_gym.create_dataset("spiral_matrix", size=1, seed=0)
    questions.score_answer(f"[__import__('pathlib').Path({str(proof)!r}).touch()]", questions[0])
    assert proof.exists()


def test_what_a_user_got_wrong_is_one_line():
    with pytest.raises(ValueError, match=r"^reasoning-gym cannot make 'nope': "):
        make_tasks(Split.TRAIN, dataset="nope")
    with pytest.raises(ValueError, match=r"unexpected keyword argument 'bogus'"):
        make_tasks(Split.TRAIN, dataset="chain_sum", settings={"bogus": 1})
