"""Demonstrations: episodes that the environments' own experts play, for the warm start.

Takes the environments of a configuration, returns text episodes; no model and no token is involved.
The episodes are real: the same tools and sandboxes as in training. All are kept, the failed ones
too: the experts are deliberately imperfect, and reinforcement learning is left something to find.
"""

import asyncio
import dataclasses
import json
import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from envs.config import EnvironmentConfig
from envs.environment import EnvironmentSpec, Split
from envs.episode import Episode, StopReason
from envs.messages import Message, Role, ToolCall, ToolSpec
from envs.play import play
from envs.registry import load_environment
from envs.task import Task
from envs.task_sets import load_tasks
from envs.tools import tool_specs
from rl.config import RunConfig
from rollout.seeds import derive_seed

logger = logging.getLogger(__name__)

NUM_PARALLEL = 4
"""Episodes played at once: enough to keep two cores busy while a sandbox starts."""
HELD_OUT_SHARE = 0.04
"""Held-out demonstrations per training demonstration; they measure, they never train."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """One episode of an expert, with the tools that it could call."""

    environment: str
    """The environment's key in the configuration."""
    tools: tuple[ToolSpec, ...]
    episode: Episode


def play_demonstrations(
    config: RunConfig, split: Split, cache: Path | None = None
) -> list[Demonstration]:
    """Let the experts play the tasks of a split, in every environment of the configuration.

    Args:
        config: `warm_start.demonstrations_per_environment` episodes are played on the train split,
            `HELD_OUT_SHARE` of that on the held-out one; tasks repeat where they are fewer.
        split: Which tasks.
        cache: Folder of earlier demonstrations. A file there is read instead of playing, so that
            a rerun with another learning rate starts at once; what is played is written there.
            Delete it after a change of an environment: only names, seeds and counts are compared.

    Returns:
        Demonstrations, by environment and in the order of their seeds: the same at every call.

    Raises:
        ValueError: an environment has no expert, or an episode broke.
    """
    count = config.warm_start.demonstrations_per_environment
    if split is Split.HELD_OUT:
        count = max(1, round(count * HELD_OUT_SHARE))
    demonstrations: list[Demonstration] = []
    for name, environment in config.environments.items():
        spec = load_environment(environment.use or name)
        tools = tool_specs(spec.environment())
        path = cache / f"{name}-{split}-{count}-seed{config.run.seed}.jsonl" if cache else None
        if path is not None and path.is_file():
            episodes = list(_read(path))
            logger.info("%s: %d demonstrations read from %s", name, len(episodes), path)
        else:
            tasks = list(_choose_tasks(name, environment, split, count, config.run.seed))
            player = _Player(name, spec, environment, config.rollout.max_turns)
            episodes = asyncio.run(player.play_all(tasks))
            if path is not None:
                _write(path, episodes)
        demonstrations += [
            Demonstration(environment=name, tools=tools, episode=episode) for episode in episodes
        ]
    return demonstrations


def _choose_tasks(
    name: str, environment: EnvironmentConfig, split: Split, count: int, seed: int
) -> Iterator[tuple[Task, int]]:
    """Shuffle the tasks again and again until `count` are drawn, each with the expert's seed."""
    tasks = list(load_tasks(name, environment, split))
    for index in range(count):
        passes, place = divmod(index, len(tasks))
        if place == 0:
            random.Random(derive_seed("demonstrations", seed, name, split, passes)).shuffle(tasks)
        yield tasks[place], derive_seed("expert", seed, tasks[place].id, passes)


class _Player:
    """Plays the expert of one environment."""

    def __init__(
        self, name: str, spec: EnvironmentSpec, environment: EnvironmentConfig, max_turns: int
    ) -> None:
        if spec.expert is None:
            raise ValueError(f"environment {name!r} has no expert: it cannot be demonstrated")
        self._name = name
        self._spec = spec
        self._expert = spec.expert
        self._environment = environment
        self._max_turns = max_turns

    async def play_all(self, tasks: Sequence[tuple[Task, int]]) -> list[Episode]:
        """Play every task, `NUM_PARALLEL` at a time, and keep the order of the tasks."""
        episodes: dict[int, Episode] = {}
        waiting = iter(enumerate(tasks))

        async def work() -> None:
            for index, (task, seed) in waiting:
                episodes[index] = await self._play(task, seed)
                if len(episodes) % max(1, len(tasks) // 10) == 0:
                    logger.info("%s: played %d of %d", self._name, len(episodes), len(tasks))

        await asyncio.gather(*(work() for _ in range(NUM_PARALLEL)))
        return [episodes[index] for index in range(len(tasks))]

    async def _play(self, task: Task, seed: int) -> Episode:
        episode = await play(
            self._spec,
            task,
            self._expert(task, random.Random(seed)),
            max_turns=self._max_turns,
            tool_timeout_seconds=self._environment.tool_timeout_seconds,
            max_tool_characters=self._environment.max_tool_characters,
        )
        if episode.stop.is_failure:
            raise ValueError(f"demonstration of task {task.id!r} broke: {episode.error}")
        return episode


def _write(path: Path, episodes: Sequence[Episode]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(dataclasses.asdict(episode)) for episode in episodes]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _read(path: Path) -> Iterator[Episode]:
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        yield Episode(
            task=Task(**record["task"]),
            messages=tuple(_message(message) for message in record["messages"]),
            stop=StopReason(record["stop"]),
            artifacts=record["artifacts"],
            error=record["error"],
        )


def _message(record: dict) -> Message:
    calls = tuple(ToolCall(**call) for call in record["tool_calls"])
    return Message(
        role=Role(record["role"]),
        text=record["text"],
        tool_calls=calls,
        tool_name=record["tool_name"],
    )
