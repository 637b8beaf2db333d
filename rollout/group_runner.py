"""Groups: siblings of a task, played at once by the agent loop of one process.

Takes tasks, returns groups and trajectories; holds what all episodes of the process share.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from envs.config import EnvironmentConfig
from envs.program import ProgramSpec
from envs.registry import load_environment
from envs.task import Task
from rewards.registry import load_grader
from rewards.reward import Grader
from rollout.agent_loop import World, run_episode
from rollout.config import RolloutConfig
from rollout.conversation import Attempt
from rollout.engine import Engine
from rollout.gateway import Gateway
from rollout.input_error import InputError, about_input
from rollout.invalid_outcomes import is_retried, settle
from rollout.program_loop import run_program_episode
from rollout.tokenizer import Tokenizer
from rollout.trajectory import Group, Trajectory

Result = TypeVar("Result")


class GroupRunner:
    """Plays episodes with one engine, at most `max_concurrent_episodes` at a time.

    Worked example:

        runner = GroupRunner(engine, tokenizer, environments, config, seed=0)
        group = await runner.run_group(task, group_size=8, round_index=0)
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        environments: Mapping[str, EnvironmentConfig],
        config: RolloutConfig,
        seed: int,
    ) -> None:
        """Load the environments.

        Args:
            engine: Samples for all episodes.
            tokenizer: The policy's.
            environments: Sections of the run, by name.
            config: Budgets, temperature and concurrency.
            seed: The run's.

        Raises:
            InputError: an environment cannot be loaded.
        """
        self._engine = engine
        self._tokenizer = tokenizer
        self._config = config
        self._seed = seed
        self._sections: dict[str, EnvironmentConfig] = dict(environments)
        for name, section in environments.items():
            self._sections.setdefault(section.use or name, section)
            with about_input():
                spec = load_environment(section.use or name)
            self._sections.setdefault(spec.name, section)
        self._graders: dict[str, Grader] = {}
        self._gateway: Gateway | None = None
        self._gateway_lock = asyncio.Lock()
        # First come, first served: groups asked for first finish first.
        self._slots = asyncio.Semaphore(config.max_concurrent_episodes)

    async def run_group(self, task: Task, group_size: int, round_index: int) -> Group:
        """Play a group of siblings.

        Args:
            task: What each of them attempts.
            group_size: Siblings.
            round_index: How often the run planned the task before.

        Raises:
            InputError: the task names no environment of the run, or its opening is too long.
            EngineError: the engine failed.
        """
        attempts = [
            Attempt(
                task=task,
                sibling=sibling,
                round=round_index,
                run_seed=self._seed,
                temperature=self._config.temperature,
            )
            for sibling in range(group_size)
        ]
        trajectories = await gather([self._play(attempt) for attempt in attempts])
        return Group(id=f"{task.id}@{round_index}", task=task, trajectories=tuple(trajectories))

    async def attempt(self, task: Task, temperature: float) -> Trajectory:
        """Play one evaluation episode; the same weights and seed sample the same."""
        attempt = Attempt(task=task, run_seed=self._seed, temperature=temperature)
        return await self._play(attempt)

    async def _play(self, attempt: Attempt) -> Trajectory:
        world = self._world(attempt.task)
        async with self._slots:
            while True:
                trajectory = await self._run(attempt, world)
                if not is_retried(trajectory, attempt.retry, self._config.invalid):
                    return settle(trajectory, self._config.invalid)
                attempt = replace(attempt, retry=attempt.retry + 1)

    async def _run(self, attempt: Attempt, world: World) -> Trajectory:
        """Run one episode: we call the environment's tools, or its program calls the policy."""
        played_with = (self._engine, self._tokenizer, self._config)
        if not isinstance(world.spec, ProgramSpec):
            return await run_episode(attempt, world, *played_with)
        async with self._gateway_lock:
            if self._gateway is None:
                self._gateway = await Gateway.start()
        return await run_program_episode(attempt, world, self._gateway, *played_with)

    async def close(self) -> None:
        """End the gateway, where a program needed one. Idempotent."""
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            await gateway.stop()

    def _world(self, task: Task) -> World:
        """Find the task's environment and grader."""
        if task.environment not in self._sections:
            known = ", ".join(self._sections)
            raise InputError(
                f"task {task.id}: environment {task.environment!r} is none of this run's: {known}"
            )
        with about_input():
            spec = load_environment(task.environment)
            if task.grader not in self._graders:
                self._graders[task.grader] = load_grader(task.grader)
        return World(
            spec=spec,
            grader=self._graders[task.grader],
            config=self._sections[task.environment],
        )


async def gather(coroutines: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Run coroutines at once; the first that raises cancels the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    return [task.result() for task in running]
