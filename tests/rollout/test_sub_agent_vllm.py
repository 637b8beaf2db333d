"""A policy that asks itself on a real engine: all its log-probs are the learner's."""

from pathlib import Path

import numpy as np
import pytest
import torch

from envs.config import EnvironmentConfig
from envs.environment import EnvironmentSpec
from envs.task import Task
from model import checkpoint
from model.logprobs import sequence_logprobs
from rewards.reward import Scored
from rollout.agent_loop import World, run_episode
from rollout.config import RolloutConfig, SubAgentConfig
from rollout.conversation import Attempt
from rollout.sub_agent import SubAgents
from rollout.tokenizer import Tokenizer
from rollout.trajectory import Source
from rollout.vllm_engine import VllmEngine

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart-checkpoint"
CONFIG = RolloutConfig(
    max_turns=2,
    max_tokens=512,
    max_sampled_tokens=200,
    max_concurrent_episodes=1,
    kv_cache_mib=64,
    sub_agent=SubAgentConfig(trains=True, max_turns=2, tools=("search",)),
)
MEAN_GAP = 1e-4
"""Largest mean difference between log-probs of engine and learner, nats."""


class Library:
    """The policy knows `search` from its warm start, and has never heard of `ask`."""

    def reset(self):
        return "gallium: in which year was it discovered?"

    def search(self, query: str) -> str:
        """Search.

        Args:
            query: Words.
        """
        return f"1 {query[:20]} history"


async def grade(episode):
    return Scored(value=0.0)


async def test_what_a_sub_agent_wrote_has_the_learners_log_probs(tmp_path, monkeypatch):
    """The asker's every call is handed to a sub-agent, for a seat must be free for it."""
    from rollout import agent_loop

    asked = []

    async def ask_instead(environment, call, seconds, characters):
        asked.append(await helpers[0].ask("gallium: in which year was it discovered?"))
        return asked[-1]

    helpers = []
    make = SubAgents.__init__

    def remember(self, *arguments):
        make(self, *arguments)
        helpers.append(self)

    monkeypatch.setattr(SubAgents, "__init__", remember)
    monkeypatch.setattr(agent_loop, "call_tool", ask_instead)
    tokenizer = Tokenizer.load(QUICKSTART)
    engine = await VllmEngine.start(QUICKSTART, CONFIG, log=tmp_path / "engine.log")
    try:
        spec = EnvironmentSpec(name="library", environment=Library, tasks=[])
        world = World(spec=spec, grader=grade, config=EnvironmentConfig())
        task = Task(id="library/1", environment="library", grader="g")
        trajectory = await run_episode(Attempt(task=task), world, engine, tokenizer, CONFIG)
    finally:
        await engine.shutdown()
    assert trajectory.outcome == Scored(value=0.0), trajectory.outcome
    assert asked
    asker, *others = trajectory.segments
    assert asker.spans[-1].source is Source.POLICY
    assert {span.source for other in others for span in other.spans if span.source.trains} == {
        Source.SUB_AGENT
    }
    model = checkpoint.load(QUICKSTART)
    for segment in trajectory.segments:
        with torch.no_grad():
            learner, _ = sequence_logprobs(
                model,
                torch.from_numpy(segment.token_ids).long(),
                torch.tensor([0, len(segment.token_ids)]),
                expert_ids=torch.from_numpy(segment.expert_ids),
            )
        mask = segment.loss_mask
        assert mask.sum() > 2
        gap = np.abs(learner.numpy() - segment.behavior_logprobs)[mask]
        assert gap.mean() <= MEAN_GAP, gap
        # The same numbers one token off are far away: the comparison can fail.
        assert np.abs(np.roll(learner.numpy(), 1) - segment.behavior_logprobs)[mask].mean() > 0.01
