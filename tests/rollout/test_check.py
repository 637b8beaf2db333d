"""The checks of tokens and masks find a lossy tokenizer and a wrong mask."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from envs.config import EnvironmentConfig
from envs.environment import EnvironmentSpec
from envs.messages import Message, Role, ToolCall
from envs.soundness import CheckLimits, Subject, Verdict, play_actions, run_checks
from rollout.agent_loop import run_episode
from rollout.check import token_checks
from rollout.tokenizer import Tokenizer

CHECKPOINT = Path(__file__).parents[2] / "configs" / "quickstart-checkpoint"


class Greeter:
    """Say hello; the reply has letters that few tokenizers know."""

    def reset(self, name):
        self.is_greeted = False
        return f"greet {name} \u2603 <|end|>"

    def greet(self, text: str) -> str:
        """Say hello.

        Args:
            text: What to say.
        """
        self.is_greeted = True
        return "caf\u00e9\n\ttwo  spaces"

    def done(self):
        return self.is_greeted


def greet(task, source):
    call = ToolCall(name="greet", arguments={"text": "hello"})
    return play_actions([Message(role=Role.POLICY, tool_calls=(call,))])


SPEC = EnvironmentSpec(
    name="greeter",
    environment=Greeter,
    tasks=[{"id": f"greeter/{index}", "name": f"number {index}"} for index in range(12)],
    expert=greet,
)


async def verdicts(tokenizer, spec=SPEC):
    subject = Subject(spec, EnvironmentConfig(), CheckLimits(num_tasks=1))
    subject.load()
    proof = await run_checks(subject, token_checks(tokenizer))
    return {result.name: (result.verdict, " ".join(result.details)) for result in proof.results}


@pytest.fixture
def tokenizer():
    return Tokenizer.load(CHECKPOINT)


async def test_all_texts_survive_our_tokenizer_and_its_masks(tokenizer):
    assert await verdicts(tokenizer) == {
        "tokens": (Verdict.PASSED, ""),
        "masks": (Verdict.PASSED, ""),
    }


async def test_a_tokenizer_that_drops_letters_is_found(tokenizer, monkeypatch):
    encode = tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda text: encode(text.replace("\u00e9", "e")))
    found = await verdicts(tokenizer)
    verdict, details = found["tokens"]
    assert verdict is Verdict.FAILED
    assert "observation 1 is not the same after encoding" in details
    assert found["masks"] == (Verdict.SKIPPED, "needs tokens")


async def test_a_text_that_becomes_a_role_marker_is_found(tokenizer, monkeypatch):
    encode, decode = tokenizer.encode, tokenizer.decode
    end = tokenizer.end_id
    monkeypatch.setattr(
        tokenizer,
        "encode",
        lambda text: [end, *encode(text.partition("<|end|>")[0])] if "<|end|>" in text else [],
    )
    monkeypatch.setattr(
        tokenizer, "decode", lambda ids: decode(ids[1:]) + "<|end|>" if end in ids else ""
    )
    verdict, details = (await verdicts(tokenizer))["tokens"]
    assert verdict is Verdict.FAILED
    assert "observation 0 forges a role marker" in details


async def test_policy_tokens_that_were_written_anew_are_found(tokenizer, monkeypatch):
    async def play_and_tokenize_again(*arguments):
        trajectory = await run_episode(*arguments)
        (segment,) = trajectory.segments
        token_ids = segment.token_ids + segment.loss_mask.astype(np.int32)
        segment = dataclasses.replace(segment, token_ids=token_ids)
        return dataclasses.replace(trajectory, segments=(segment,))

    monkeypatch.setattr("rollout.check.run_episode", play_and_tokenize_again)
    verdict, details = (await verdicts(tokenizer))["masks"]
    assert verdict is Verdict.FAILED
    assert "the loss mask is not the policy's tokens" in details


async def test_an_episode_that_is_another_by_tokens_is_found(tokenizer):
    class Echo(Greeter):
        def greet(self, text: str) -> str:
            """Say hello.

            Args:
                text: What to say.
            """
            super().greet(text)
            return repr(text)

    def whisper(task, source):
        call = ToolCall(name="greet", arguments={"text": "half a letter: \udc80"})
        return play_actions([Message(role=Role.POLICY, tool_calls=(call,))])

    spec = dataclasses.replace(SPEC, environment=Echo, expert=whisper)
    verdict, details = (await verdicts(tokenizer, spec))["masks"]
    assert verdict is Verdict.FAILED
    assert "by tokens the episode is another than by messages" in details
