"""`limosa bench rollout`: the agent loop against its own engine, in a real actor."""

import asyncio
import tempfile
from pathlib import Path

from rollout.collector import Collector
from rollout.config import RolloutConfig
from rollout.throughput import BenchPlan, RolloutBench


def bench_rollout(
    checkpoint: Path, config: RolloutConfig, plan: BenchPlan | None = None
) -> RolloutBench:
    """Start one engine, measure, and end it; see `rollout.throughput`.

    Args:
        checkpoint: Folder of the weights.
        config: The `rollout` section; one engine is started whatever it says.
        plan: What to measure; 64 conversations of 6 turns if None.

    Raises:
        ValueError: no Ray at `config.ray_address`.
        InputError: the conversations do not fit.
        EngineError: the engine did not come up.
    """

    async def run() -> RolloutBench:
        one = config.model_copy(update={"num_engines": 1})
        with tempfile.TemporaryDirectory(prefix="limosa-bench-") as folder:
            async with Collector.start(
                checkpoint, {}, one, seed=0, log_folder=Path(folder)
            ) as collector:
                return await collector.bench(plan or BenchPlan())

    return asyncio.run(run())
