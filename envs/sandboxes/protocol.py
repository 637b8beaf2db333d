"""What a sandbox is: the protocol, its limits, its results and its two kinds of failure.

    backend.start(limits, lease) -> Sandbox -> exec, read, write, snapshot, restore -> stop

Two failures are told apart. `SandboxError` is infrastructure: nobody's score. `WorkspaceError` is
an answer about the files that the program itself made: missing, a link, too large.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from envs.sandboxes.lease import Lease

WORKSPACE = "/workspace"
"""Where a program finds its files, in backends that give it a file system of its own."""
INPUTS = "/inputs"
"""Where a program finds what its caller gave it to read, in such backends."""
NO_INPUTS: Mapping[str, bytes] = MappingProxyType({})
MAX_READ_BYTES = 1 << 20
"""Of one file, unless the caller allows more."""


class SandboxError(Exception):
    """The sandbox could not be set up or broke: infrastructure, never the program's fault."""


class WorkspaceError(Exception):
    """The workspace does not allow it: no such file, a directory, a link, too large, disk full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """What a program may use."""

    wall_seconds: float = 5.0
    """Of one program: from the start of the sandbox where that is its own, set-up included."""
    cpu_seconds: int = 1
    """Per process."""
    memory_mib: int = 256
    """Address space per process, MiB; of all together where control groups or the backend allow."""
    max_processes: int = 8
    """Processes and threads at once, the sandbox's own two included."""
    max_output_bytes: int = 65_536
    """Standard output and error; in a sandbox of one program, also each file that it writes."""
    disk_mib: int = 16
    """Files in the workspace, MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """How a program in a sandbox ended."""

    stdout: bytes
    stderr: bytes
    exit_code: int
    """0 is success; 127: there is no such program; 128 + n: signal n ended it."""
    timed_out: bool
    """Wall clock or CPU time ran out."""
    truncated: bool
    """It wanted to print more than `max_output_bytes`, and was ended."""
    seconds: float
    """Wall time."""


class Sandbox(Protocol):
    """A confined machine with a workspace of its own, from `Backend.start` to `stop`.

    One operation runs at a time; others wait. With a program every process that it started ends:
    only files outlive it. A cancelled operation stops the sandbox.
    """

    @property
    def lease(self) -> Lease:
        """Who holds it, and for how long."""
        ...

    @property
    def inputs(self) -> str:
        """Folder of the files that it was started with."""
        ...

    def assign(self, owner: str, ttl_seconds: float) -> bool:
        """Hand the sandbox to another owner in this process; False where it has ended."""
        ...

    async def exec(
        self, argv: Sequence[str], *, stdin: bytes = b"", wall_seconds: float | None = None
    ) -> ExecResult:
        """Run a program in the workspace to its end.

        Args:
            argv: The program and its arguments; `python3` is always there.
            stdin: What it reads from standard input.
            wall_seconds: Instead of the limit of the sandbox.

        Raises:
            SandboxError: the sandbox broke or is stopped.
        """
        ...

    async def read(self, path: str, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """Return the bytes of a file in the workspace; no link is followed.

        Raises:
            WorkspaceError: it is no regular file in the workspace, or is longer than `max_bytes`.
            SandboxError: the sandbox broke or is stopped.
        """
        ...

    async def write(self, path: str, content: bytes) -> None:
        """Write a file in the workspace and the folders above it; no link is followed.

        Raises:
            WorkspaceError: the path leads elsewhere, or the disk is full.
            SandboxError: the sandbox broke or is stopped.
        """
        ...

    async def snapshot(self) -> bytes:
        """Return the workspace's folders, files and links as one tar file.

        Raises:
            WorkspaceError: it is larger than the disk allows, counting holes as bytes.
            SandboxError: the sandbox broke or is stopped.
        """
        ...

    async def restore(self, snapshot: bytes) -> None:
        """Make the workspace what it was when a snapshot was taken, here or in another sandbox.

        Raises:
            WorkspaceError: the bytes are no snapshot, or do not fit.
            SandboxError: the sandbox broke or is stopped.
        """
        ...

    async def stop(self) -> None:
        """End every process, remove every file; a second call does nothing."""
        ...


class Backend(Protocol):
    """One way to confine programs, registered in the entry-point group `limosa.sandboxes`."""

    @property
    def name(self) -> str:
        """What it is called: `bubblewrap`."""
        ...

    async def find_problem(self) -> str | None:
        """Say in one line why it does not work on this machine; None where it does."""
        ...

    async def start(
        self, limits: SandboxLimits, lease: Lease, inputs: Mapping[str, bytes] = NO_INPUTS
    ) -> Sandbox:
        """Start a sandbox with an empty workspace.

        Args:
            limits: What programs may use.
            lease: Already open; it is released with the sandbox.
            inputs: Files outside of the workspace, by name. Programs read them; nobody in there
                can change, replace or remove them.

        Raises:
            SandboxError: it does not start.
        """
        ...
