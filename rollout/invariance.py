"""Does a token get the same bits from the engine whatever else it does, and from the learner?

One conversation is held several times: alone, among others, and scored as one sequence by an engine
that takes long prompts at once and by one that takes them in small pieces. Where all log-probs are
equal bit for bit, a conversation can be continued identically after a crash.

The forward of training scores it as well, packed behind another one. Where that is equal too,
learner and engine are one policy: a token's ratio before the first update is 1 exactly.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, Int32

from model.checkpoint import load, save
from model.hybrid import build_model
from model.logprobs import sequence_logprobs
from model.presets import tiny
from rollout.config import RolloutConfig
from rollout.engine import Engine, SamplingConfig
from rollout.vllm_engine import VllmEngine

NUM_TURNS = 8
SAMPLED_PER_TURN = 32
"""Tokens of a turn that the policy samples; the others are given."""
COMPANY = 7
"""Conversations beside the one that is compared."""
LARGE_STEP, SMALL_STEP = 2048, 64
"""Tokens per step of the two engines, at most."""
VOCABULARY = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariance:
    """Tokens before the first that differs in any bit; all of them if none does."""

    num_tokens: int
    """Length of the conversation."""
    in_company: int
    """Sampled alone, against sampled among other conversations."""
    rescored: int
    """Sampled, against scored as one sequence."""
    in_pieces: int
    """Scored in large steps, against in small ones."""
    trained: int
    """Sampled, against scored by the forward of training."""

    @property
    def proven(self) -> int:
        """Context, tokens, up to which nothing differs."""
        return min(self.in_company, self.rescored, self.in_pieces, self.trained)


@dataclass(frozen=True, slots=True)
class Played:
    """A conversation as it was held."""

    token_ids: Int32[np.ndarray, " T"]
    logprobs: Float32[np.ndarray, " T"]
    """As sampled; NaN at tokens that were given."""

    def tokens_before_difference_to(self, scores: Float32[np.ndarray, " T"]) -> int:
        """Return the index of the first sampled token that is scored otherwise, or the length."""
        given = np.isnan(self.logprobs)
        return tokens_before_difference(self.logprobs, np.where(given, self.logprobs, scores))


def engine_batch_invariant(num_tokens: int = 8192) -> int:
    """Return the longest context, tokens, for which the bits are proven: 0 if none.

    Starts two engines on a `tiny` model with random weights, one after the other; about a minute.

    Args:
        num_tokens: Longest context that is tried.
    """
    with tempfile.TemporaryDirectory(prefix="limosa-invariance-") as folder:
        save(build_model(tiny(VOCABULARY), seed=0), folder)
        return asyncio.run(measure_invariance(Path(folder), num_tokens)).proven


async def measure_invariance(checkpoint: Path, num_tokens: int) -> Invariance:
    """Hold one conversation in every way, and compare.

    Args:
        checkpoint: Folder of a model with a vocabulary of at least `VOCABULARY` tokens.
        num_tokens: Length of the conversation.

    Raises:
        ValueError: `num_tokens` leaves no room to sample.
        EngineError: an engine did not come up, or died.
    """
    given = num_tokens // NUM_TURNS - SAMPLED_PER_TURN
    if given < 1:
        raise ValueError(
            f"num_tokens = {num_tokens} is too short: at least "
            f"{NUM_TURNS * (SAMPLED_PER_TURN + 1)} tokens"
        )
    engine = await VllmEngine.start(checkpoint, _config(num_tokens, LARGE_STEP))
    try:
        alone = await hold_conversation(engine, 0, given)
        together, company, *_ = await asyncio.gather(
            hold_conversation(engine, 0, given),
            *(hold_conversation(engine, i, max(1, given - 13 * i)) for i in range(1, COMPANY + 1)),
        )
        at_once = await engine.score(alone.token_ids.tolist())
    finally:
        await engine.shutdown()
    engine = await VllmEngine.start(checkpoint, _config(num_tokens, SMALL_STEP))
    try:
        in_pieces = await engine.score(alone.token_ids.tolist())
    finally:
        await engine.shutdown()
    # Last, for it loads numba (`kernels.lane.has_cpu_lane` says why that matters).
    trained = score_in_training(checkpoint, [company, alone])[-1]
    return Invariance(
        num_tokens=len(alone.token_ids),
        in_company=min(
            tokens_before_difference(alone.token_ids, together.token_ids),
            tokens_before_difference(alone.logprobs, together.logprobs),
        ),
        rescored=alone.tokens_before_difference_to(at_once),
        in_pieces=tokens_before_difference(at_once, in_pieces),
        trained=alone.tokens_before_difference_to(trained),
    )


async def hold_conversation(engine: Engine, index: int, given_per_turn: int) -> Played:
    """Give random tokens and sample, in turns.

    Args:
        engine: Which engine.
        index: Of the conversation: decides given tokens and seeds.
        given_per_turn: Tokens given before each turn is sampled.
    """
    generator = np.random.default_rng(index)
    session = await engine.open(f"invariance/{index}")
    token_ids: list[int] = []
    logprobs: list[float] = []
    for turn in range(NUM_TURNS):
        given = generator.integers(VOCABULARY, size=given_per_turn).tolist()
        sampling = SamplingConfig(max_tokens=SAMPLED_PER_TURN, seed=1000 * index + turn)
        generation = await session.extend(given, sampling)
        token_ids += given + generation.token_ids.tolist()
        logprobs += [np.nan] * len(given) + generation.logprobs.tolist()
    await session.close()
    return Played(np.array(token_ids, dtype=np.int32), np.array(logprobs, dtype=np.float32))


def score_in_training(
    checkpoint: Path, conversations: Sequence[Played]
) -> list[Float32[np.ndarray, " T"]]:
    """Score conversations as the learner does: packed, with gradients, in this process.

    Args:
        checkpoint: Folder of the policy that sampled them.
        conversations: At least one.
    """
    tokens = [torch.from_numpy(played.token_ids).long() for played in conversations]
    lengths = [len(own) for own in tokens]
    logprobs, _ = sequence_logprobs(
        load(checkpoint), torch.cat(tokens), torch.tensor([0, *lengths]).cumsum(0)
    )
    return [own.numpy() for own in logprobs.detach().split(lengths)]


def tokens_before_difference(one: np.ndarray, other: np.ndarray) -> int:
    """Return the index of the first number that differs, or the length; NaN equals NaN."""
    differs = np.flatnonzero((one != other) & ~(np.isnan(one) & np.isnan(other)))
    return int(differs[0]) if len(differs) else len(one)


def _config(num_tokens: int, step: int) -> RolloutConfig:
    return RolloutConfig(
        max_tokens=num_tokens,
        max_sampled_tokens=NUM_TURNS * SAMPLED_PER_TURN,
        max_concurrent_episodes=COMPANY + 1,
        max_batched_tokens=step,
        kv_cache_mib=256,
    )
