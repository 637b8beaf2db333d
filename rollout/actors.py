"""The Ray actor of the rollout: one engine, and the agent loops that use it, in one process.

Tasks come in and trajectories go out; tokens never travel between processes turn by turn.
"""

import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from envs.config import EnvironmentConfig
from envs.task import Task
from rollout.config import RolloutConfig
from rollout.group_runner import GroupRunner
from rollout.input_error import about_input
from rollout.throughput import BenchPlan, RolloutBench, measure
from rollout.tokenizer import Tokenizer
from rollout.trajectory import Group, Trajectory
from rollout.weight_update import PublishReceipt, WeightManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSetup:
    """What a rollout actor needs to know: plain values, sent once."""

    index: int
    checkpoint: Path
    environments: Mapping[str, EnvironmentConfig]
    config: RolloutConfig
    seed: int
    log_folder: Path
    working_folder: Path
    """Where dotted paths of the user's own environments are looked for."""


class RolloutActor:
    """An engine and its agent loops. Made with `ray.remote(RolloutActor)`; all methods are async.

    Worked example:

        actor = ray.remote(RolloutActor).remote(setup)
        await actor.start.remote()
        group = await actor.run_group.remote(task, group_size=8, round_index=0)
    """

    def __init__(self, setup: ActorSetup) -> None:
        """Prepare the process; `start` starts the engine."""
        self._setup = setup
        setup.log_folder.mkdir(parents=True, exist_ok=True)
        logging.basicConfig(
            filename=setup.log_folder / f"actor-{setup.index}.log",
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
            level=logging.INFO,
            force=True,
        )
        if setup.working_folder.is_dir():
            os.chdir(setup.working_folder)

    async def locate(self) -> tuple[str, int]:
        """Tell host name and process id: what the collector makes sure is gone at the end."""
        return socket.gethostname(), os.getpid()

    async def start(self) -> None:
        """Load the environments and start the engine.

        Raises:
            InputError: an environment or the tokenizer cannot be loaded.
            EngineError: the engine did not come up.
        """
        # vLLM takes seconds to import: not while Ray still makes the actor.
        from rollout.vllm_engine import VllmEngine

        setup = self._setup
        with about_input():
            self._tokenizer = Tokenizer.load(setup.checkpoint)
        log = setup.log_folder / f"engine-{setup.index}.log"
        self._engine = await VllmEngine.start(
            setup.checkpoint, setup.config, log=log, seed=setup.seed
        )
        self._runner = GroupRunner(
            self._engine, self._tokenizer, setup.environments, setup.config, setup.seed
        )

    async def run_group(self, task: Task, group_size: int, round_index: int) -> Group:
        """Play a group; see `GroupRunner.run_group`."""
        return await self._runner.run_group(task, group_size, round_index)

    async def evaluate_task(self, task: Task, temperature: float) -> Trajectory:
        """Play one evaluation episode; see `GroupRunner.attempt`."""
        return await self._runner.attempt(task, temperature)

    async def publish(self, manifest: WeightManifest, recompute_running: bool) -> PublishReceipt:
        """Take new weights; see `VllmEngine.apply`."""
        return await self._engine.apply(manifest, recompute_running=recompute_running)

    async def score(self, token_ids: list[int]) -> Float32[np.ndarray, " T"]:
        """Score tokens; see `Engine.score`."""
        return await self._engine.score(token_ids)

    async def bench(self, plan: BenchPlan) -> RolloutBench:
        """Measure the agent loop against the bare engine; see `rollout.throughput.measure`."""
        return await measure(self._engine, self._tokenizer, plan, self._setup.config)

    async def shutdown(self) -> None:
        """End the gateway, the engine and its processes."""
        try:
            await self._runner.close()
        finally:
            await self._engine.shutdown()
