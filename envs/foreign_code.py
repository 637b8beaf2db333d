"""Calls into code that somebody else wrote, sync or async, in bounded time.

A sync method runs in a thread of its own, so that no other conversation waits for it. The thread is
a daemon: one that never returns is left behind, and keeps neither the loop nor the process from
ending. Whatever the code raises comes out as an ordinary exception.

An async function shares the caller's loop with `call_foreign`: it may hold what belongs to that
loop, and where it blocks, all wait. `call_apart` gives it a thread and a loop of its own instead.
"""

import asyncio
import contextlib
import contextvars
import ctypes
import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

Result = TypeVar("Result")
CLEAN_UP_SECONDS = 5.0
"""For a cancelled function to end what it started, before its thread is left behind."""


async def call_foreign(
    function: Callable[..., object],
    arguments: Mapping[str, object] | None = None,
    timeout_seconds: float | None = None,
) -> object:
    """Call a function that nobody trusts to return.

    Args:
        function: Sync or async.
        arguments: By name.
        timeout_seconds: None waits for ever. An async function is cancelled, at its next `await`; a
            sync one goes on in its thread, and what it returns is dropped.

    Returns:
        What it returned, awaited where that was needed.

    Raises:
        TimeoutError: it took longer.
        Exception: whatever it raised. What is no exception of a program, such as
            KeyboardInterrupt, comes out as RuntimeError: it is not the user who pressed a key.
    """
    arguments = arguments or {}
    async with asyncio.timeout(timeout_seconds):
        if inspect.iscoroutinefunction(function):
            value: object = function(**arguments)
        else:
            value = await _run_in_thread(lambda: function(**arguments))
        try:
            return await value if inspect.isawaitable(value) else value
        except KeyboardInterrupt as error:
            raise _as_exception(error) from error


async def call_apart(
    function: Callable[[], object], timeout_seconds: float | None = None
) -> object:
    """Call a function in a thread with an event loop of its own: where it blocks, nobody waits.

    Args:
        function: Sync or async. It must hold nothing that belongs to the caller's loop.
        timeout_seconds: None waits for ever. After it, and where the caller is cancelled, the
            function is cancelled and has `CLEAN_UP_SECONDS` to end what it started. One that does
            not, because it blocks, gets SystemExit at its next line of Python.

    Returns:
        What it returned, awaited where that was needed.

    Raises:
        TimeoutError: it took longer.
        Exception: whatever it raised; see `call_foreign`.
    """
    call = _CallApart()
    running = asyncio.create_task(_run_in_thread(lambda: call.run(function)))
    try:
        done, _ = await asyncio.wait([running], timeout=timeout_seconds)
        if not done:
            raise TimeoutError(f"no end within {timeout_seconds:g} s")
        value, error = running.result()
        if error is not None:
            raise error
        return value
    finally:
        if not running.done():
            call.cancel()
            try:
                await asyncio.wait([running], timeout=CLEAN_UP_SECONDS)
            finally:
                call.end_thread()
                running.cancel()


@dataclass(slots=True)
class _CallApart:
    """A function in a loop of its own, and how another thread gets it to end."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    thread: threading.Thread | None = None
    loop: asyncio.AbstractEventLoop | None = None
    task: "asyncio.Task[_Outcome] | None" = None
    is_cancelled: bool = False

    def run(self, function: Callable[[], object]) -> "_Outcome":
        """Run the function in this thread, to its end."""
        self.thread = threading.current_thread()
        try:
            return asyncio.run(self._await(function))
        finally:
            with self.lock:
                self.thread = self.loop = self.task = None

    async def _await(self, function: Callable[[], object]) -> "_Outcome":
        with self.lock:
            if self.is_cancelled:
                return None, TimeoutError("cancelled before it began")
            self.loop = asyncio.get_running_loop()
            self.task = asyncio.create_task(_settle(function))
        return await self.task

    def cancel(self) -> None:
        """Cancel the function at its next `await`."""
        with self.lock:
            self.is_cancelled = True
            if self.loop is not None and self.task is not None:
                self.loop.call_soon_threadsafe(self.task.cancel)

    def end_thread(self) -> None:
        """Raise SystemExit in the thread, where it still runs: a loop without `await` ends."""
        with self.lock:
            if self.thread is not None and self.thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self.thread.ident), ctypes.py_object(SystemExit)
                )


_Outcome = tuple[object, BaseException | None]
"""What a function returned, and what it raised. No task ends with SystemExit: that ends a loop."""


async def _settle(function: Callable[[], object]) -> _Outcome:
    try:
        value = function()
        return (await value if inspect.isawaitable(value) else value), None
    except BaseException as raised:  # foreign code may raise anything
        return None, _as_exception(raised)


async def _run_in_thread(function: Callable[[], Result]) -> Result:
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Result] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: Result) -> None:
        if not outcome.done():  # otherwise nobody waits any more
            outcome.set_result(value)

    def settle_error(error: BaseException) -> None:
        if not outcome.done():
            outcome.set_exception(error)

    def work() -> None:
        try:
            report = partial(settle, context.run(function))
        except BaseException as raised:  # foreign code may raise anything
            report = partial(settle_error, _as_exception(raised))
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(report)

    threading.Thread(target=work, name="foreign-code", daemon=True).start()
    return await outcome


def _as_exception(error: BaseException) -> BaseException:
    """Pass on what a future can carry; a StopIteration breaks the loop."""
    is_plain = isinstance(error, Exception | SystemExit) and not isinstance(error, StopIteration)
    if is_plain:
        return error
    wrapped = RuntimeError(f"{type(error).__name__} left the call")
    wrapped.__cause__ = error
    return wrapped
