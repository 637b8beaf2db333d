"""A program with the real clients, a real engine, and the learner: one set of log-probs."""

from pathlib import Path

import anthropic
import numpy as np
import openai
import pytest
import torch

from envs.program import ProgramSpec
from envs.task import Task
from model import checkpoint
from model.logprobs import sequence_logprobs
from rewards.reward import Scored
from rollout.agent_loop import World
from rollout.config import RolloutConfig
from rollout.conversation import Attempt
from rollout.gateway import Gateway
from rollout.program_loop import run_program_episode
from rollout.tokenizer import Tokenizer
from rollout.vllm_engine import VllmEngine

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart-checkpoint"
CONFIG = RolloutConfig(
    max_turns=6, max_tokens=512, max_sampled_tokens=200, max_concurrent_episodes=4, kv_cache_mib=64
)
MEAN_GAP = 1e-4
"""Largest mean difference between log-probs of engine and learner, nats."""
SEARCH = {"query": {"type": "string"}}
SCHEMA = {"type": "object", "properties": SEARCH, "required": ["query"]}


async def converse(task, endpoint, sandbox):
    """Two turns by chat completions, then a third in Anthropic's API with another history."""
    question = {"role": "user", "content": task.data["question"]}
    tools = [{"type": "function", "function": {"name": "search", "parameters": SCHEMA}}]
    async with openai.AsyncOpenAI(
        base_url=endpoint.openai_url, api_key=endpoint.api_key, max_retries=0
    ) as client:
        history = [question]
        for _ in range(2):
            completion = await client.chat.completions.create(
                model="policy", messages=history, tools=tools, max_completion_tokens=40
            )
            message = completion.choices[0].message
            history.append(message)
            history += [
                {"role": "tool", "tool_call_id": call.id, "content": "1 gallium history"}
                for call in message.tool_calls or ()
            ] or [{"role": "user", "content": "go on"}]
    async with anthropic.AsyncAnthropic(
        base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0
    ) as client:
        await client.messages.create(model="policy", max_tokens=40, messages=[question])
    return {}


async def grade(episode):
    return Scored(value=0.0)


async def test_what_a_program_sampled_has_the_learners_log_probs(tmp_path):
    tokenizer = Tokenizer.load(QUICKSTART)
    engine = await VllmEngine.start(QUICKSTART, CONFIG, log=tmp_path / "engine.log")
    gateway = await Gateway.start()
    try:
        spec = ProgramSpec(name="agent", run=converse, tasks=[], sandbox=None)
        task = Task(
            id="agent/1",
            environment="agent",
            grader="none",
            data={"question": "gallium: in which year was it discovered?"},
        )
        world = World(spec=spec, grader=grade, config=None)
        trajectory = await run_program_episode(
            Attempt(task=task), world, gateway, engine, tokenizer, CONFIG
        )
    finally:
        await gateway.stop()
        await engine.shutdown()
    assert trajectory.outcome == Scored(value=0.0), trajectory.outcome
    assert [turn.segment for turn in trajectory.turns] == [0, 0, 1]
    model = checkpoint.load(QUICKSTART)
    for segment in trajectory.segments:
        expert_ids = segment.expert_ids
        with torch.no_grad():
            learner, _ = sequence_logprobs(
                model,
                torch.from_numpy(segment.token_ids).long(),
                torch.tensor([0, len(segment.token_ids)]),
                expert_ids=None if expert_ids is None else torch.from_numpy(expert_ids),
            )
        mask = segment.loss_mask
        assert mask.sum() > 5
        gap = np.abs(learner.numpy() - segment.behavior_logprobs)[mask]
        assert gap.mean() <= MEAN_GAP, gap
        # The same numbers one token off are far away: the comparison can fail.
        assert np.abs(np.roll(learner.numpy(), 1) - segment.behavior_logprobs)[mask].mean() > 0.01
