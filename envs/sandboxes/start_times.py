"""How long it takes until a sandbox can be used: started now, and taken from a pool."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from envs.sandboxes.pool import SandboxPool
from envs.sandboxes.protocol import Backend, SandboxLimits
from envs.sandboxes.registry import choose_backend, start_sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTimes:
    """Times in milliseconds, one per start."""

    backend: str
    cold_ms: Sequence[float]
    """From nothing to a sandbox that answers."""
    pooled_ms: Sequence[float]
    """From a pool that has one ready."""
    exec_ms: Sequence[float]
    """To run the smallest program in a sandbox that lives."""

    @property
    def cold_p50_ms(self) -> float:
        """Median of the cold starts."""
        return statistics.median(self.cold_ms)

    @property
    def pooled_p50_ms(self) -> float:
        """Median of the starts from a pool."""
        return statistics.median(self.pooled_ms)

    @property
    def exec_p50_ms(self) -> float:
        """Median of the programs."""
        return statistics.median(self.exec_ms)


async def measure_start(
    repeats: int = 20, limits: SandboxLimits | None = None, backend: Backend | None = None
) -> StartTimes:
    """Start sandboxes one after the other, cold and from a pool, and use each once.

    Args:
        repeats: Starts of each kind.
        limits: What programs may use; the defaults of `SandboxLimits` where None.
        backend: What confines them; the first that works here where None.

    Raises:
        ValueError: no repeats.
        SandboxError: a sandbox does not start.
    """
    if repeats < 1:
        raise ValueError(f"at least 1 start is measured, not {repeats}")
    backend = backend or await choose_backend()
    cold, pooled, programs = [], [], []
    for _ in range(repeats):
        started = time.perf_counter()
        sandbox = await start_sandbox(limits, owner="measurement", backend=backend)
        cold.append(_milliseconds_since(started))
        await sandbox.stop()
    async with SandboxPool(1, limits, backend) as pool:
        for _ in range(repeats):
            started = time.perf_counter()
            sandbox = await pool.take("measurement")
            pooled.append(_milliseconds_since(started))
            started = time.perf_counter()
            await sandbox.exec(["true"])
            programs.append(_milliseconds_since(started))
            await sandbox.stop()
            await pool.wait_until_full()
    return StartTimes(backend=backend.name, cold_ms=cold, pooled_ms=pooled, exec_ms=programs)


def _milliseconds_since(started: float) -> float:
    return 1000 * (time.perf_counter() - started)
