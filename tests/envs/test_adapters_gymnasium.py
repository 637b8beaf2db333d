"""Real Gymnasium environments, played through text."""

import asyncio

import gymnasium
import numpy as np
import pytest

from envs.adapters.gymnasium import SPEC, GymnasiumWorld, make_tasks, spell_colours
from envs.config import EnvironmentConfig
from envs.environment import Split
from envs.messages import Message, Role, ToolCall
from envs.play import play
from rewards.check import check_rewards
from rewards.episode_return import grade
from rewards.reward import Scored

LAKE = {
    "env_id": "FrozenLake-v1",
    "actions": ["left", "down", "right", "up"],
    "settings": {"is_slippery": False},
}
ROUTE = ["down", "down", "right", "right", "down", "right"]


def act(action):
    return Message(
        role=Role.POLICY, tool_calls=(ToolCall(name="act", arguments={"action": action}),)
    )


def play_lake(actions):
    task = make_tasks(Split.TRAIN, **LAKE)[0]
    script = iter(actions)
    return asyncio.run(play(SPEC, task, lambda _: act(next(script)), max_turns=len(actions)))


@pytest.mark.parametrize(
    "options",
    [LAKE, {"env_id": "Taxi-v4", "full_return": 20.0}, {"env_id": "CartPole-v1"}],
    ids=lambda options: options["env_id"],
)
def test_the_checker_accepts_real_environments(options):
    section = EnvironmentConfig(options=options)
    assert asyncio.run(check_rewards(SPEC, section, num_tasks=2)) == []


def test_reaching_the_goal_of_the_lake_scores_one():
    episode = play_lake(ROUTE)
    assert episode.artifacts == {"return": 1.0, "steps": 6, "is_over": True}
    assert asyncio.run(grade(episode)) == Scored(value=1.0, parts={"return": 1.0})


def test_falling_through_the_ice_ends_the_episode_and_scores_zero():
    episode = play_lake(["right", "down", "left"])
    assert episode.artifacts == {"return": 0.0, "steps": 2, "is_over": True}
    assert asyncio.run(grade(episode)) == Scored(value=0.0, parts={"return": 0.0})


def test_the_policy_reads_where_it_stands():
    opening, _, reply = play_lake(["right"]).messages
    assert "Actions: left, down, right, up\n{on red: S}FFF\n" in opening.text
    assert "S{on red: F}FF\n" in reply.text
    assert reply.text.endswith("observation: 1, reward: 0")


def test_an_unknown_action_is_an_error_that_lists_the_known_ones():
    assert play_lake(["north"]).messages[-1].text == (
        "error: no action 'north'; there are: left, down, right, up"
    )


def test_colours_become_words():
    assert spell_colours("|\x1b[34;1mB\x1b[0m: |") == "|{blue: B}: |"


class Echo(gymnasium.Env):
    """Text in, text out; a box of two numbers where `is_box`."""

    def __init__(self, is_box=False):
        box = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = box if is_box else gymnasium.spaces.Text(8)
        self.observation_space = gymnasium.spaces.Text(8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "ready", {}

    def step(self, action):
        return str(action), 1.0, True, False, {}


@pytest.fixture
def echo():
    gymnasium.register("LimosaEcho-v0", entry_point=Echo)
    yield "LimosaEcho-v0"
    del gymnasium.registry["LimosaEcho-v0"]


def test_text_actions_pass_as_they_are(echo):
    world = GymnasiumWorld()
    world.reset(echo, 0, [], {})
    assert world.act("hello") == 'observation: "hello", reward: 1'


def test_other_actions_are_json_and_checked_against_their_space(echo):
    from envs.environment import ToolError

    world = GymnasiumWorld()
    world.reset(echo, 0, [], {"is_box": True})
    for wrong in ("[2, 0]", "[1]", "left", "{}", "[" * 9999):
        with pytest.raises(ToolError, match="is no value of Box"):
            world.act(wrong)
    assert world.act("[0.5, 0]").startswith('observation: "[0.5 0. ]"')


def test_what_a_user_got_wrong_is_one_line():
    with pytest.raises(ValueError, match=r"^Gymnasium cannot make 'Nowhere-v9': "):
        make_tasks(Split.TRAIN, env_id="Nowhere-v9")
    with pytest.raises(ValueError, match="has 4 discrete actions, not 2"):
        make_tasks(Split.TRAIN, env_id="FrozenLake-v1", actions=["left", "right"])
    with pytest.raises(ValueError, match="full_return = 0 is not positive"):
        make_tasks(Split.TRAIN, full_return=0)
