"""Checks of an environment's tokens: observations survive encoding, and the loss mask is right.

Takes the tokenizer of the policy, returns checks for `envs.soundness.run_checks`. Episodes are
played by the agent loop itself, with an engine that samples what the expert would.
"""

from collections.abc import Sequence
from functools import partial

from envs.environment import EnvironmentSpec
from envs.episode import Episode
from envs.messages import Message, Role
from envs.soundness import Check, Subject
from envs.task import Task
from envs.tools import tool_specs
from rewards.reward import Outcome, Scored
from rollout.agent_loop import World, run_episode
from rollout.config import RolloutConfig
from rollout.conversation import Attempt
from rollout.renderer import Renderer
from rollout.scripted_engine import ScriptedEngine
from rollout.tokenizer import Tokenizer
from rollout.trajectory import Trajectory

UNBOUNDED_TOKENS = 1_000_000
"""Budget of the episodes here: what is checked is no length."""


def token_checks(tokenizer: Tokenizer) -> tuple[Check, ...]:
    """Make the checks for a tokenizer."""
    return (
        Check(
            name="tokens",
            rule="what the policy reads is the same after encoding and decoding",
            find=partial(find_lossy_texts, tokenizer),
            needs=("plays",),
        ),
        Check(
            name="masks",
            rule="by tokens an episode is the same, and the policy's tokens alone are trained on",
            find=partial(find_wrong_masks, tokenizer),
            needs=("isolation", "tokens"),
        ),
    )


async def find_lossy_texts(tokenizer: Tokenizer, subject: Subject) -> list[str]:
    """Every text that the policy reads is the same after encoding and decoding."""
    for spec, task in subject.chosen:
        for number, text in enumerate(_observed((await subject.episode(spec, task)).messages)):
            token_ids = tokenizer.encode(text)
            if tokenizer.decode(token_ids) != text:
                return [f"{task.id}: observation {number} is not the same after encoding"]
            if tokenizer.special_ids & set(token_ids):
                return [f"{task.id}: observation {number} forges a role marker"]
    return []


async def find_wrong_masks(tokenizer: Tokenizer, subject: Subject) -> list[str]:
    """The agent loop plays the same episode, and trains on the policy's tokens alone."""
    for spec, task in subject.chosen:
        episode = await subject.episode(spec, task)
        renderer = Renderer(tokenizer, tool_specs(spec.environment))
        actions = [message for message in episode.messages if message.role is Role.POLICY]
        try:
            written = [_written(renderer, action) for action in actions]
        except ValueError as error:
            return [f"{task.id}: a policy cannot write this: {error}"]
        trajectory = await _play_tokens(tokenizer, subject, (spec, task), written)
        if _observed(trajectory.episode.messages) != _observed(episode.messages):
            return [f"{task.id}: by tokens the episode is another than by messages"]
        if _trained_tokens(trajectory) != [token for turn in written for token in turn]:
            return [f"{task.id}: the loss mask is not the policy's tokens"]
    return []


async def _play_tokens(
    tokenizer: Tokenizer,
    subject: Subject,
    world: tuple[EnvironmentSpec, Task],
    turns: Sequence[Sequence[int]],
) -> Trajectory:
    """Let the agent loop play an episode in which the policy samples these turns."""
    spec, task = world
    config = RolloutConfig(
        max_turns=max(1, len(turns)),
        max_tokens=UNBOUNDED_TOKENS,
        max_sampled_tokens=UNBOUNDED_TOKENS,
    )
    return await run_episode(
        Attempt(task=task),
        World(spec=spec, grader=_leave_ungraded, config=subject.section),
        ScriptedEngine(lambda _, turn: turns[turn]),
        tokenizer,
        config,
    )


async def _leave_ungraded(episode: Episode) -> Outcome:
    del episode
    return Scored(value=0.0)


def _written(renderer: Renderer, action: Message) -> Sequence[int]:
    return [token for piece in renderer.render_action(action) for token in piece.token_ids]


def _observed(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages if message.role is not Role.POLICY]


def _trained_tokens(trajectory: Trajectory) -> list[int]:
    segments = trajectory.segments
    return [int(token) for part in segments for token in part.token_ids[part.loss_mask]]
