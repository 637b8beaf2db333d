"""Foreign code may sleep, leave and raise anything; the loop goes on."""

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from envs.foreign_code import call_foreign


async def test_sync_and_async_functions_return_what_they_return():
    async def later(x):
        return x + 1

    assert await call_foreign(lambda x: x + 1, {"x": 1}) == 2
    assert await call_foreign(later, {"x": 1}) == 2
    assert await call_foreign(lambda: later(1)) == 2


async def test_a_sync_function_runs_beside_the_loop_and_a_slow_one_is_given_up():
    assert await call_foreign(threading.current_thread) is not threading.main_thread()
    started = time.perf_counter()
    with pytest.raises(TimeoutError):
        await call_foreign(lambda: time.sleep(1.0), timeout_seconds=0.05)
    with pytest.raises(TimeoutError):
        await call_foreign(lambda: asyncio.sleep(30), timeout_seconds=0.05)
    assert time.perf_counter() - started < 0.9


@pytest.mark.parametrize("error", [KeyboardInterrupt, StopIteration, GeneratorExit])
async def test_what_would_break_the_loop_becomes_an_error(error):
    def leave():
        raise error

    async def leave_later():
        raise error

    with pytest.raises(RuntimeError, match=error.__name__):
        await call_foreign(leave)
    if error is KeyboardInterrupt:
        with pytest.raises(RuntimeError, match="KeyboardInterrupt left the call"):
            await call_foreign(leave_later)


def test_a_function_that_never_returns_does_not_keep_the_process():
    code = (
        "import asyncio, time\nfrom envs.foreign_code import call_foreign\n"
        "async def main():\n"
        "    try:\n        await call_foreign(lambda: time.sleep(600), timeout_seconds=0.05)\n"
        "    except TimeoutError:\n        print('given up')\n"
        "asyncio.run(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "given up\n"
