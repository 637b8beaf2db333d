import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rl.interrupt import hold_signals, run_to_end

STUBBORN = """
import asyncio, subprocess, sys
from rl import interrupt
interrupt.GRACE_SECONDS = 1.0

async def main():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print(child.pid, flush=True)
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            print("refused", flush=True)

interrupt.run_to_end(main())
"""


def test_the_result_is_passed_on():
    async def main():
        return 42

    assert run_to_end(main()) == 42


def test_ctrl_c_cancels_so_that_everything_is_closed():
    closed = []

    async def main():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(30)
        finally:
            closed.append(True)

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_to_end(main())
    assert closed == [True]
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_it_is_let_through(number):
    done = []

    def begin():
        with hold_signals() as release:
            os.kill(os.getpid(), number)
            done.append("begun")
            release()
            done.append("never")

    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        begin()
    assert done == ["begun"]
    assert signal.getsignal(number) is before


def test_a_signal_after_the_beginning_comes_at_once():
    def work():
        with hold_signals() as release:
            release()
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
            raise AssertionError

    with pytest.raises(KeyboardInterrupt):
        work()


def test_what_does_not_end_in_time_is_killed_with_its_children():
    process = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 130
    assert process.stdout.read() == "refused\n"
    process.stdout.close()
    deadline = time.monotonic() + 5
    while _is_alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
