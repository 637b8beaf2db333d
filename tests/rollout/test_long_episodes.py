"""Episodes of any length by tokens: walks through the dictionary, played by the agent loop."""

import random
from pathlib import Path

import pytest

from envs.config import EnvironmentConfig
from envs.corpora.foldoc import load_foldoc
from envs.encyclopedia import SPEC, make_expert, make_tasks
from envs.environment import Split
from envs.messages import Role
from envs.play import play
from envs.tools import tool_specs
from rewards.cited_support import grade
from rewards.reward import Scored
from rollout.agent_loop import World, run_episode
from rollout.config import RolloutConfig
from rollout.conversation import Attempt
from rollout.renderer import Renderer
from rollout.scripted_engine import ScriptedEngine
from rollout.tokenizer import Tokenizer

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart-checkpoint"


def has_dictionary():
    try:
        load_foldoc()
    except ValueError:
        return False
    return True


@pytest.mark.skipif(not has_dictionary(), reason="no dictionary here: make corpora")
@pytest.mark.parametrize(
    ("hops", "page_characters", "num_tokens"),
    [
        (4, 5_000, 10_000),
        (20, 10_000, 100_000),
        pytest.param(200, 10_000, 1_000_000, marks=pytest.mark.slow),
    ],
)
async def test_the_expert_plays_an_episode_of_that_many_tokens(hops, page_characters, num_tokens):
    tokenizer = Tokenizer.load(QUICKSTART)
    task = make_tasks(Split.TRAIN, hops=hops, page_characters=page_characters, num_tasks=4)[0]
    expert = make_expert(task, random.Random(0))
    limits = EnvironmentConfig(max_tool_characters=page_characters)
    renderer = Renderer(tokenizer, tool_specs(SPEC.environment))
    played = await play(SPEC, task, expert, max_turns=hops + 3, max_tool_characters=page_characters)
    script = [
        [token for piece in renderer.render_action(message) for token in piece.token_ids]
        for message in played.messages
        if message.role is Role.POLICY
    ]
    trajectory = await run_episode(
        Attempt(task=task),
        World(spec=SPEC, grader=grade, config=limits),
        ScriptedEngine(lambda _, turn: script[turn]),
        tokenizer,
        RolloutConfig(max_turns=hops + 3, max_tokens=4 * num_tokens, max_sampled_tokens=num_tokens),
    )
    assert trajectory.outcome == Scored(value=1.0, parts={"value_right": 1.0, "support": 1.0})
    assert len(trajectory.turns) == hops + 3
    assert num_tokens < trajectory.num_tokens < 2.5 * num_tokens
    assert trajectory.computed_tokens == trajectory.num_tokens - 1  # nothing is read twice
