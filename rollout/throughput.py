"""Throughput of the agent loop against bare use of the same engine, measured in one process.

Both sides run the same conversations on the same engine: as many, with the same prompts, the same
number of turns and of sampled tokens. The loop side also renders, parses, calls an instant tool,
grades, and writes the trajectories to a log; the bare side only sends tokens and takes tokens. The
two are measured in turn, several times, and neighbours are compared, for no machine is quiet.
"""

import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from envs.config import EnvironmentConfig
from envs.environment import EnvironmentSpec
from envs.episode import Episode
from envs.task import Task
from rewards.reward import Outcome, Scored
from rollout.agent_loop import World, run_episode
from rollout.config import RolloutConfig
from rollout.conversation import Attempt
from rollout.engine import Engine, Generation, SamplingConfig, Session, SessionReport
from rollout.input_error import InputError
from rollout.tokenizer import Tokenizer
from rollout.trajectory import Group
from rollout.trajectory_store import append_group


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """What is measured."""

    num_conversations: int = 64
    num_turns: int = 6
    tokens_per_turn: int = 10
    """Sampled tokens of a turn."""
    repetitions: int = 5
    """Measurements of each side, after one of each that does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBench:
    """What was measured; medians over the repetitions."""

    loop_tokens_per_second: float
    """Sampled tokens per second of the agent loop."""
    bare_tokens_per_second: float
    """Sampled tokens per second of the engine alone."""
    loop_over_bare: float
    """Median over neighbouring measurements of the first over the second; 1: the loop is free."""
    sampled_tokens: int
    """Tokens sampled in each measurement."""
    num_conversations: int
    num_turns: int
    repetitions: int


class Notebook:
    """An environment whose only tool answers at once."""

    def reset(self) -> str:
        """Say something of the length of a real opening."""
        return "write down what you are told, one note after another, until you are stopped"

    def note(self, text: str) -> str:
        """Take a note.

        Args:
            text: Anything.
        """
        return f"noted {text[:4]}"


NOTEBOOK = EnvironmentSpec(name="notebook", environment=Notebook, tasks=lambda: ())


async def pass_all(episode: Episode) -> Outcome:
    """Grade every episode 1."""
    del episode
    return Scored(value=1.0)


async def measure(
    engine: Engine, tokenizer: Tokenizer, plan: BenchPlan, config: RolloutConfig
) -> RolloutBench:
    """Measure both sides alternately.

    Args:
        engine: The engine that both sides use.
        tokenizer: The policy's.
        plan: Conversations, turns and repetitions.
        config: The `rollout` section that the engine was started with.

    Raises:
        InputError: the conversations do not fit into `config.max_tokens`.
    """
    config = config.model_copy(
        update={
            "max_turns": plan.num_turns,
            "max_sampled_tokens": plan.num_turns * plan.tokens_per_turn,
        }
    )
    call = _call_of_length(tokenizer, plan.tokens_per_turn)
    loop_rates: list[float] = []
    bare_rates: list[float] = []
    for _ in range(plan.repetitions + 1):
        dictating = _DictatingEngine(engine, call)
        loop_rates.append(await _measure_loop(dictating, tokenizer, plan, config))
        bare_rates.append(await _measure_bare(engine, dictating.prompts, plan))
    pairs = list(zip(loop_rates, bare_rates, strict=True))[1:]
    return RolloutBench(
        loop_tokens_per_second=statistics.median(loop for loop, _ in pairs),
        bare_tokens_per_second=statistics.median(bare for _, bare in pairs),
        loop_over_bare=statistics.median(loop / bare for loop, bare in pairs),
        sampled_tokens=plan.num_conversations * plan.num_turns * plan.tokens_per_turn,
        num_conversations=plan.num_conversations,
        num_turns=plan.num_turns,
        repetitions=plan.repetitions,
    )


async def _measure_loop(
    engine: "_DictatingEngine", tokenizer: Tokenizer, plan: BenchPlan, config: RolloutConfig
) -> float:
    """Play all conversations with the agent loop and log them; gives sampled tokens per second."""
    world = World(spec=NOTEBOOK, grader=pass_all, config=EnvironmentConfig())
    tasks = [
        Task(id=f"notebook/{index}", environment="notebook", grader="pass_all")
        for index in range(plan.num_conversations)
    ]
    with tempfile.TemporaryDirectory(prefix="limosa-bench-") as folder:
        started = time.perf_counter()
        trajectories = await asyncio.gather(
            *(run_episode(Attempt(task=task), world, engine, tokenizer, config) for task in tasks)
        )
        for trajectory in trajectories:
            task = trajectory.episode.task
            group = Group(id=trajectory.id, task=task, trajectories=(trajectory,))
            append_group(Path(folder) / "groups.jsonl", group)
        seconds = time.perf_counter() - started
    num_sampled = sum(trajectory.num_sampled for trajectory in trajectories)
    expected = plan.num_conversations * plan.num_turns * plan.tokens_per_turn
    if num_sampled != expected:
        raise InputError(
            f"{num_sampled} of {expected} tokens fit: rollout.max_tokens = {config.max_tokens} is "
            "too small for the benchmark"
        )
    return num_sampled / seconds


async def _measure_bare(engine: Engine, prompts: list[list[int]], plan: BenchPlan) -> float:
    """Hold all conversations with the engine alone; gives sampled tokens per second."""

    async def converse(index: int) -> int:
        session = await engine.open(f"bare/{index}")
        num_sampled = 0
        for turn, prompt in enumerate(prompts):
            sampling = SamplingConfig(max_tokens=plan.tokens_per_turn, seed=index * 1000 + turn)
            num_sampled += len((await session.extend(prompt, sampling)).token_ids)
        await session.close()
        return num_sampled

    started = time.perf_counter()
    sampled = await asyncio.gather(*(converse(index) for index in range(plan.num_conversations)))
    return sum(sampled) / (time.perf_counter() - started)


def _call_of_length(tokenizer: Tokenizer, length: int) -> list[int]:
    """Write a call of the notebook's tool in exactly so many tokens: digits are never merged."""
    head = [tokenizer.call_id, *tokenizer.encode("note"), tokenizer.arg_id]
    num_digits = length - len(head) - 1
    if num_digits < 1:
        raise ValueError(f"a call does not fit into {length} tokens")
    return [*head, *tokenizer.encode("1" * length)[:num_digits], tokenizer.end_id]


class _DictatingEngine:
    """Samples with the real engine, as many tokens as the call has, and hands over the call.

    What a policy writes is its own business; a benchmark needs conversations of one length.
    """

    def __init__(self, engine: Engine, call: list[int]) -> None:
        self._engine = engine
        self._call = np.array(call, dtype=np.int32)
        self.prompts: list[list[int]] = []
        """What the first conversation sent, turn by turn; all send the same."""
        self._is_recorded = False

    @property
    def version(self) -> int:
        return self._engine.version

    async def open(self, session_id: str) -> "Session":
        prompts = None if self._is_recorded else self.prompts
        self._is_recorded = True
        return _DictatingSession(await self._engine.open(session_id), self._call, prompts)

    async def score(self, token_ids: list[int]) -> Float32[np.ndarray, " T"]:
        return await self._engine.score(token_ids)


class _DictatingSession:
    """A session of a `_DictatingEngine`."""

    def __init__(self, session: Session, call: np.ndarray, prompts: list[list[int]] | None) -> None:
        self._session = session
        self._call = call
        self._prompts = prompts

    async def extend(self, token_ids: list[int], sampling: SamplingConfig) -> Generation:
        if self._prompts is not None:
            self._prompts.append(token_ids)
        sampling = replace(sampling, max_tokens=len(self._call), stop_token_ids=())
        generation = await self._session.extend(token_ids, sampling)
        return replace(generation, token_ids=self._call, finish="stop")

    async def close(self) -> SessionReport:
        return await self._session.close()
