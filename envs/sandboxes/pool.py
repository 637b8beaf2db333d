"""Sandboxes started ahead of time: whoever needs one does not wait for it.

A sandbox is handed out once and never comes back: what an episode did in it ends with it. The
pool refills in the background, and removes what crashed owners left.
"""

import asyncio
import time
from collections import deque

from envs.sandboxes.lease import DEFAULT_TTL_SECONDS, reap
from envs.sandboxes.protocol import Backend, Sandbox, SandboxError, SandboxLimits
from envs.sandboxes.registry import start_sandbox

REAP_SECONDS = 30.0
"""Between two looks for sandboxes that nobody holds any more."""
OWNER = "pool"
"""Of sandboxes that wait."""


class SandboxPool:
    """Keeps sandboxes ready; `async with` it.

    Args:
        size: Sandboxes that wait at most.
        limits: What programs may use.
        backend: What confines them; the first that works here where None.
    """

    def __init__(
        self, size: int, limits: SandboxLimits | None = None, backend: Backend | None = None
    ) -> None:
        if size < 1:
            raise ValueError(f"a pool holds at least 1 sandbox, not {size}")
        self.size = size
        self._limits = limits or SandboxLimits()
        self._backend = backend
        self._ready: deque[Sandbox] = deque()
        self._reaped = time.monotonic()
        self._refill: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "SandboxPool":
        """Remove what crashed owners left, and start the first sandboxes.

        Raises:
            SandboxError: they do not start.
        """
        await asyncio.to_thread(reap)
        try:
            await self._fill()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the sandboxes that wait."""
        await self.close()

    async def take(self, owner: str, ttl_seconds: float = DEFAULT_TTL_SECONDS) -> Sandbox:
        """Hand out a sandbox: one that waits, or else one that is started now.

        Args:
            owner: Whose it is from now on.
            ttl_seconds: From its last operation until anybody may end it.

        Raises:
            SandboxError: none waits and none starts.
        """
        sandbox = None
        while self._ready and sandbox is None:
            sandbox = self._ready.popleft()
            if not sandbox.assign(owner, ttl_seconds):
                await sandbox.stop()
                sandbox = None
        if self._refill is None or self._refill.done():
            self._refill = asyncio.create_task(self._refill_quietly())
        if sandbox is None:
            sandbox = await start_sandbox(
                self._limits, owner=owner, ttl_seconds=ttl_seconds, backend=self._backend
            )
        return sandbox

    async def wait_until_full(self) -> None:
        """Wait for the refill that is under way, if any."""
        if self._refill is not None:
            await self._refill

    async def close(self) -> None:
        """Stop the sandboxes that wait; those handed out belong to their owners."""
        if self._refill is not None:
            self._refill.cancel()
            await asyncio.gather(self._refill, return_exceptions=True)
        while self._ready:
            await self._ready.popleft().stop()

    async def _fill(self) -> None:
        while len(self._ready) < self.size:
            self._ready.append(
                await start_sandbox(self._limits, owner=OWNER, backend=self._backend)
            )

    async def _refill_quietly(self) -> None:
        """Refill; a failure shows where the next sandbox is started for somebody who waits."""
        try:
            if time.monotonic() - self._reaped >= REAP_SECONDS:
                self._reaped = time.monotonic()
                await asyncio.to_thread(reap)
            await self._fill()
        except SandboxError:
            return
