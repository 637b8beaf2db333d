"""Calls into code that somebody else wrote, sync or async, in bounded time.

A sync method runs in a thread of its own, so that no other conversation waits for it. The thread is
a daemon: one that never returns is left behind, and keeps neither the loop nor the process from
ending. Whatever the code raises comes out as an ordinary exception.
"""

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable, Mapping


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


async def _run_in_thread(function: Callable[[], object]) -> object:
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[object] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: object, error: BaseException | None) -> None:
        if outcome.done():  # nobody waits any more
            return
        if error is None:
            outcome.set_result(value)
        else:
            outcome.set_exception(error)

    def work() -> None:
        value, error = None, None
        try:
            value = context.run(function)
        except BaseException as raised:  # foreign code may raise anything
            error = _as_exception(raised)
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, value, error)

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
