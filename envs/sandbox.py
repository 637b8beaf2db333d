"""A sandbox for one program that nobody trusts: bubblewrap around a bare Python interpreter.

Takes a program's text, returns what it printed. Inside there is no network, no file of the host
but a read-only interpreter, no other process, no environment variable and no way to more rights;
time, memory, processes and output are bounded. If the sandbox cannot be set up the program does
not run at all: `SandboxError`, which is nobody's score.

The interpreter's start is most of the cost, so it runs isolated (`-I`), without `site` (`-S`), and
the bootstrap that sets the limits then runs the program in the same process. Where bubblewrap does
not work, the program runs in a sandbox of another backend (`envs/sandboxes`), or not at all.
"""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache

from envs.sandboxes import bubblewrap
from envs.sandboxes.bubblewrap import (
    ROOT_STAND_IN,
    find_launcher,
    memory_file,
    mount_inputs,
)
from envs.sandboxes.protocol import INPUTS, NO_INPUTS, Backend, SandboxError, SandboxLimits
from envs.sandboxes.registry import choose_backend, start_sandbox
from envs.sandboxes.slots import Slots

__all__ = ["ROOT_STAND_IN", "SandboxError", "SandboxLimits", "SandboxResult", "run_python"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxResult:
    """What came out of a program."""

    stdout: bytes
    exit_code: int
    """0 is success; 128 + n: signal n ended it."""
    timed_out: bool
    """Wall clock or CPU time ran out."""
    truncated: bool
    """It wanted to print more than `max_output_bytes`."""
    seconds: float
    """Wall time, set-up included."""


_BOOTSTRAP = """
import os, resource, sys
status, *limits = map(int, sys.argv[1:-1])
for name, value in zip(("CPU", "AS", "NPROC", "FSIZE", "NOFILE", "CORE"), limits):
    resource.setrlimit(getattr(resource, "RLIMIT_" + name), (value, value + (name == "CPU")))
os.write(status, b"ready")
os.closerange(3, 1024)
os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
program = sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))
sys.argv[1:] = filter(None, sys.argv[-1:])
exec(compile(program, "program", "exec"), {"__name__": "__main__"})
"""


async def run_python(
    program: str,
    stdin: str = "",
    limits: SandboxLimits | None = None,
    inputs: Mapping[str, bytes] = NO_INPUTS,
) -> SandboxResult:
    """Run a Python program in a sandbox of its own.

    Args:
        program: Source text; it runs as `__main__` with the standard library alone.
        stdin: What it reads from standard input.
        limits: What it may use; the defaults of `SandboxLimits` where None.
        inputs: Files that it can read and nobody in there can change, by name, in the folder that
            is then its only argument.

    Returns:
        What it printed and how it ended. Standard error is dropped.

    Raises:
        SandboxError: the sandbox could not be set up.
    """
    limits = limits or SandboxLimits()
    backend = await choose_backend()
    if backend is not bubblewrap.BACKEND:
        return await _run_elsewhere(backend, program, stdin, limits, inputs)
    text = program.encode("utf-8", "replace")
    source = b"%d\n%s%s" % (len(text), text, stdin.encode("utf-8", "replace"))
    launcher = _find_launcher()
    async with _SLOTS:
        started = time.monotonic()
        with ExitStack() as stack:
            files = [stack.enter_context(memory_file(content)) for content in (source, b"", b"")]
            # The program never holds this one: it cannot pretend that the sandbox failed.
            status = stack.enter_context(memory_file())
            input_options, input_files = mount_inputs(inputs, stack)
            command = [*launcher.command, *input_options, *launcher.program]
            command += [str(status), *_arguments(limits), INPUTS if inputs else ""]
            open_files = (status, *input_files, *launcher.open_files)
            exit_code = await _run(command, launcher.environment, limits, files, open_files)
            stdout = os.pread(files[1], limits.max_output_bytes, 0)
            complaint = os.pread(files[2], 2000, 0).decode("utf-8", "replace").strip()
            is_started = bool(os.pread(status, 1, 0))
        seconds = time.monotonic() - started
    if not is_started:
        reason = complaint.splitlines()[-1] if complaint else f"no start within {seconds:.1f} s"
        raise SandboxError(f"the sandbox did not start: {reason}")
    return SandboxResult(
        stdout=stdout,
        exit_code=128 + signal.SIGKILL if exit_code is None else exit_code,
        timed_out=exit_code is None or exit_code == 128 + signal.SIGXCPU,
        truncated=len(stdout) >= limits.max_output_bytes,
        seconds=seconds,
    )


async def _run(
    command: Sequence[str],
    environment: Mapping[str, str],
    limits: SandboxLimits,
    files: Sequence[int],
    open_files: Sequence[int],
) -> int | None:
    """Run a command to its end; None where the wall clock ran out and it was killed.

    The three standard files are memory, not pipes: the kernel enforces the output limit on them,
    and there is nothing to pump. With the sandbox's first process all others die.
    """
    stdin, stdout, stderr = files
    try:
        process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd="/",
            env=dict(environment),
            pass_fds=open_files,
        )
    except OSError as error:
        raise SandboxError(f"the sandbox did not start: {error}") from error
    loop = asyncio.get_running_loop()
    handle = os.pidfd_open(process.pid)
    ended = loop.create_future()
    loop.add_reader(handle, lambda: ended.done() or ended.set_result(None))
    try:
        async with asyncio.timeout(limits.wall_seconds):
            await ended
    except TimeoutError:
        return None
    finally:
        loop.remove_reader(handle)
        os.close(handle)
        process.kill()
        process.wait()
    return process.returncode


_SLOTS = Slots(2 * (os.cpu_count() or 1))
"""Bounds the sandboxes at once, so that a crowd of them does not run into the wall clock."""


def _arguments(limits: SandboxLimits) -> list[str]:
    """The bootstrap's arguments, in the order of its `setrlimit` calls."""
    numbers = (
        limits.cpu_seconds,
        limits.memory_mib << 20,
        limits.max_processes,
        limits.max_output_bytes,
        64,  # open files
        0,  # core dumps
    )
    return [str(number) for number in numbers]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launcher:
    """How a sandbox is started, and what that needs."""

    command: tuple[str, ...]
    """Up to the point where more can be mounted."""
    program: tuple[str, ...]
    """The rest, up to the bootstrap's arguments."""
    environment: Mapping[str, str]
    """Of bubblewrap itself; the program gets none."""
    open_files: tuple[int, ...]
    """Files that `command` and `environment` name by number."""


@lru_cache(maxsize=1)
def _find_launcher() -> _Launcher:
    """Find out how to start sandboxes on this machine.

    Raises:
        SandboxError: bubblewrap, or an interpreter that the sandbox's user can read, is missing.
    """
    found = find_launcher()
    command = [*found.command, *found.options, "--size", str(16 << 20), "--tmpfs", "/tmp"]
    command += ["--chdir", "/tmp"]
    program = ["--remount-ro", "/dev", "--remount-ro", "/"]  # only /tmp, of bounded size, is left
    program += [found.interpreter, "-I", "-S", "-c", _BOOTSTRAP]
    return _Launcher(
        command=tuple(command),
        program=tuple(program),
        environment=found.environment,
        open_files=found.open_files,
    )


async def _run_elsewhere(
    backend: Backend,
    program: str,
    stdin: str,
    limits: SandboxLimits,
    inputs: Mapping[str, bytes],
) -> SandboxResult:
    """Run a program in a fresh sandbox of another backend than bubblewrap."""
    async with _SLOTS:
        sandbox = await start_sandbox(limits, owner="one program", backend=backend, inputs=inputs)
        try:
            result = await sandbox.exec(
                ["python3", "-I", "-S", "-c", program, *([sandbox.inputs] if inputs else [])],
                stdin=stdin.encode("utf-8", "replace"),
            )
        finally:
            await sandbox.stop()
    return SandboxResult(
        stdout=result.stdout,
        exit_code=result.exit_code,
        timed_out=result.timed_out,
        truncated=result.truncated,
        seconds=result.seconds,
    )
