"""The collector: the only handle on the rollout that `rl` sees.

Takes tasks and published weights, returns groups, trajectories and receipts. Behind it stand Ray
actors, each with an engine and the agent loops that use it.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil
from jaxtyping import Float32

from envs.config import EnvironmentConfig
from envs.task import Task
from rollout.actors import ActorSetup, RolloutActor
from rollout.config import RolloutConfig
from rollout.engine import EngineError
from rollout.engine_environment import engine_environment
from rollout.group_runner import gather
from rollout.input_error import InputError
from rollout.placement import Placement, connect, descendants, kill_processes
from rollout.throughput import BenchPlan, RolloutBench
from rollout.trajectory import Group, Trajectory
from rollout.weight_update import PublishReceipt, WeightManifest

SHUTDOWN_SECONDS = 5.0
"""Time for the engines to end by themselves when a run is complete."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Seat:
    """An actor and what the collector knows of it."""

    actor: Any
    """Ray's handle."""
    host: str = ""
    process_id: int = 0
    num_running: int = 0
    """Episodes that were asked of it and are not back."""


class Collector:
    """Collects trajectories with `num_engines` actors. Made by `Collector.start`.

    Worked example:

        async with Collector.start(checkpoint, environments, config, seed=0, log_folder=logs) as c:
            receipts = await c.publish(manifest)
            group = await c.collect_group(task, group_size=8, round_index=0)
    """

    def __init__(self, config: RolloutConfig, log_folder: Path) -> None:
        """Hold no actor yet; use `start`."""
        self._config = config
        self._log_folder = log_folder
        self._seats: list[_Seat] = []
        self._placement: Placement | None = None

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        checkpoint: Path,
        environments: Mapping[str, EnvironmentConfig],
        config: RolloutConfig,
        *,
        seed: int,
        log_folder: Path,
    ) -> AsyncIterator[Self]:
        """Start or join Ray and start the engines; end them, whatever happens, on the way out.

        Args:
            checkpoint: Folder of the weights that the engines begin with (policy version 0).
            environments: Sections of the run, by name.
            config: The `rollout` section.
            seed: The run's.
            log_folder: Where actors and engines write `actor-0.log`, `engine-0.log` and so on.

        Raises:
            ValueError: no Ray at `config.ray_address`.
            InputError: an environment cannot be loaded.
            EngineError: an engine did not come up in `config.start_timeout_seconds`.
        """
        collector = cls(config, log_folder)
        is_orderly = False
        try:
            collector._placement = connect(config.ray_address)
            await collector._start_actors(checkpoint, environments, seed)
            yield collector
            is_orderly = True
        finally:
            await collector._end(is_orderly=is_orderly)

    @property
    def num_engines(self) -> int:
        """Engines, each of which answers a publish."""
        return len(self._seats)

    async def collect_group(self, task: Task, group_size: int, round_index: int) -> Group:
        """Play a group of siblings on the engine with the fewest episodes.

        Args:
            task: What each of them attempts.
            group_size: Siblings.
            round_index: How often the run planned the task before; sampling seeds derive from it.

        Raises:
            InputError: the task's environment is not of this run, or its opening is too long.
            EngineError: the engine failed.
        """
        seat = self._freest()
        with _running(seat, group_size):
            return await self._ask(seat, "run_group", task, group_size, round_index)

    async def evaluate(self, tasks: Sequence[Task], temperature: float) -> list[Trajectory]:
        """Play one episode of each task, on all engines at once.

        Args:
            tasks: Held-out tasks.
            temperature: Sampling temperature.

        Returns:
            Trajectories in the order of the tasks.

        Raises:
            InputError: as in `collect_group`.
            EngineError: the engine failed.
        """
        return await gather([self._evaluate(task, temperature) for task in tasks])

    async def _evaluate(self, task: Task, temperature: float) -> Trajectory:
        seat = self._freest()
        with _running(seat, 1):
            return await self._ask(seat, "evaluate_task", task, temperature)

    async def publish(
        self, manifest: WeightManifest, *, recompute_running: bool = False
    ) -> list[PublishReceipt]:
        """Give new weights to every engine; conversations in flight go on.

        Args:
            manifest: The weights.
            recompute_running: Compute the state of running conversations again.

        Returns:
            One receipt per engine.

        Raises:
            PublishError: an engine did not take the weights.
            EngineError: an engine failed.
        """
        return await gather(
            [self._ask(seat, "publish", manifest, recompute_running) for seat in self._seats]
        )

    async def score(self, token_ids: Sequence[int]) -> Float32[np.ndarray, " T"]:
        """Score tokens with the weights that the first engine holds; see `Engine.score`."""
        return await self._ask(self._seats[0], "score", [int(token) for token in token_ids])

    async def bench(self, plan: BenchPlan) -> RolloutBench:
        """Measure the first engine's agent loop; see `rollout.throughput`."""
        return await self._ask(self._seats[0], "bench", plan)

    async def _start_actors(
        self, checkpoint: Path, environments: Mapping[str, EnvironmentConfig], seed: int
    ) -> None:
        import ray

        config = self._config
        # The engine's threads share the machine with the learner: Ray's bookkeeping of CPUs would
        # only refuse to place an actor on a small machine.
        make = ray.remote(RolloutActor).options(
            num_cpus=0, runtime_env={"env_vars": engine_environment(config)}
        )
        for index in range(config.num_engines):
            setup = ActorSetup(
                index=index,
                checkpoint=checkpoint.absolute(),
                environments=environments,
                config=config,
                seed=seed,
                log_folder=self._log_folder.absolute(),
                working_folder=Path.cwd(),
            )
            self._seats.append(_Seat(actor=make.remote(setup)))
        try:
            async with asyncio.timeout(config.start_timeout_seconds):
                await gather([self._start_actor(seat) for seat in self._seats])
        except TimeoutError as error:
            raise EngineError(
                f"engines are not up after rollout.start_timeout_seconds = "
                f"{config.start_timeout_seconds:g}: raise it, or see {self._log_folder}"
            ) from error

    async def _start_actor(self, seat: _Seat) -> None:
        seat.host, seat.process_id = await self._ask(seat, "locate")
        await self._ask(seat, "start")

    def _freest(self) -> _Seat:
        return min(self._seats, key=lambda seat: seat.num_running)

    async def _ask(self, seat: _Seat, method: str, *arguments: object) -> Any:  # noqa: ANN401
        """Call an actor; what it raises comes out as it was raised there.

        Its traceback stays there, so that a ValueError would read as raised here: one that is not
        typed as an `InputError` is a fault of the actor.
        """
        import ray
        from ray.exceptions import RayActorError, RayTaskError

        reference = getattr(seat.actor, method).remote(*arguments)
        try:
            return await reference
        except asyncio.CancelledError:
            ray.cancel(reference)
            raise
        except RayTaskError as error:
            if isinstance(error.cause, ValueError) and not isinstance(error.cause, InputError):
                raise EngineError(
                    f"a rollout actor failed in {method}: {type(error.cause).__name__}: "
                    f"{error.cause}"
                ) from error
            raise error.cause from error
        except RayActorError as error:
            raise EngineError(
                f"a rollout actor died in {method}; its logs are in {self._log_folder}"
            ) from error

    async def _end(self, *, is_orderly: bool) -> None:
        """End actors, engines and our Ray; whatever is left of them is killed."""
        if self._placement is None:
            return
        import ray
        from ray.exceptions import RayError

        left_over = self._processes_here()
        if is_orderly:
            ends = [seat.actor.shutdown.remote() for seat in self._seats]
            with contextlib.suppress(TimeoutError, RayError):
                async with asyncio.timeout(SHUTDOWN_SECONDS):
                    await asyncio.gather(*ends)
        # Before Ray does it, which kills the tracker of the engine's semaphores with the rest.
        kill_processes(left_over, grace_seconds=0.0)
        for seat in self._seats:
            ray.kill(seat.actor)
        self._placement.end()
        self._placement = None
        self._seats = []

    def _processes_here(self) -> list[psutil.Process]:
        """List the actors' processes and their engines', those of this machine."""
        found: list[psutil.Process] = []
        for seat in self._seats:
            if seat.process_id and seat.host == socket.gethostname():
                found += descendants(seat.process_id)
                with contextlib.suppress(psutil.NoSuchProcess):
                    found.append(psutil.Process(seat.process_id))
        return found


@contextlib.contextmanager
def _running(seat: _Seat, num_episodes: int) -> Iterator[None]:
    seat.num_running += num_episodes
    try:
        yield
    finally:
        seat.num_running -= num_episodes
