"""Ctrl-C: a run ends in order, and if it cannot, it ends anyway.

The first SIGINT or SIGTERM cancels the main task, so that every `async with` closes what it opened.
After `GRACE_SECONDS`, or at a second signal, this process and all its descendants are killed.
Before the main task there is `hold_signals`, so that no run folder is left half made.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from rollout.placement import descendants, kill_processes

GRACE_SECONDS = 8.0
"""Time to end in order; whatever still lives then is killed."""
INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)

Result = TypeVar("Result")


def run_to_end(main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main` like `asyncio.run`, with the ending described above.

    Returns:
        What `main` returned.

    Raises:
        KeyboardInterrupt: a signal came, and everything ended in order.
    """
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(main)  # signals are the main thread's business
    interruption = _Interruption()
    before = {number: signal.signal(number, interruption.handle) for number in SIGNALS}
    try:
        with asyncio.Runner() as runner:
            return runner.run(interruption.watch(main))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        interruption.end()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def hold_signals() -> Iterator[Callable[[], None]]:
    """Let signals wait while something is begun that has to be ended as well.

    Yields:
        A function that lets them through: one that waited raises KeyboardInterrupt there, a later
        one wherever the program is then, SIGTERM like SIGINT.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None  # signals are the main thread's business
        return
    waiting: list[int] = []
    is_held = True

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        waiting.append(number)
        if not is_held:
            raise KeyboardInterrupt

    def release() -> None:
        nonlocal is_held
        is_held = False
        if waiting:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield release
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Interruption:
    """Turns the first signal into a cancellation, and a late or second one into a kill."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._timer: threading.Timer | None = None

    async def watch(self, main: Coroutine[Any, Any, Result]) -> Result:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        return await main

    def handle(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self._timer is not None:
            kill_everything()
        self._timer = threading.Timer(GRACE_SECONDS, kill_everything)
        self._timer.daemon = True
        self._timer.start()
        if self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def kill_everything() -> None:
    """Kill all descendants of this process, then the process itself, without any clean-up."""
    kill_processes(descendants(), grace_seconds=0.0)
    os._exit(INTERRUPTED)
