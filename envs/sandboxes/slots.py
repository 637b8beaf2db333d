"""A bound on what happens at once in this process, whatever event loop it happens in."""

import asyncio
import threading
from collections import deque


class Slots:
    """A semaphore for several threads with loops of their own; `async with` it.

    Args:
        number: Holders at once. Others wait; first come, first served.
    """

    def __init__(self, number: int) -> None:
        self._free = number
        self._lock = threading.Lock()
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    async def __aenter__(self) -> None:
        """Wait for a slot."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._free > 0:
                self._free -= 1
                return
            turn = loop.create_future()
            self._waiting.append((loop, turn))
        try:
            await turn
        except BaseException:
            with self._lock:
                is_waiting = (loop, turn) in self._waiting
                if is_waiting:
                    self._waiting.remove((loop, turn))
            if not is_waiting:  # the slot was handed over meanwhile
                self._release()
            raise

    async def __aexit__(self, *_: object) -> None:
        """Hand the slot to whoever waits longest."""
        self._release()

    def _release(self) -> None:
        with self._lock:
            while self._waiting:
                loop, turn = self._waiting.popleft()
                try:
                    loop.call_soon_threadsafe(_wake, turn)
                except RuntimeError:  # that loop has ended with all who waited in it
                    continue
                return
            self._free += 1


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
