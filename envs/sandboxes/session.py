"""The outside of a sandbox: starts a guest in whatever confines it, and talks to it.

All backends share this; they differ in the command line that the guest runs under. The trusted
side moves bytes only: it opens no path that a program chose, and unpacks nothing.
"""

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from envs.sandboxes.lease import Lease, ProcessIdentity
from envs.sandboxes.protocol import (
    INPUTS,
    MAX_READ_BYTES,
    WORKSPACE,
    ExecResult,
    SandboxError,
    SandboxLimits,
    WorkspaceError,
)

START_SECONDS = 30.0
"""Until a guest reports: far more than it takes, on a machine where much else runs."""
GRACE_SECONDS = 20.0
"""Beyond a program's own time, until a guest that does not answer counts as broken."""
STOP_SECONDS = 5.0
"""Until a guest that was told to end is killed with all that confines it."""
_FILE_SECONDS = 30.0
_MAX_HEADER_BYTES = 65_536
GUEST = Path(__file__).with_name("guest.py")
ARCHIVE = Path(__file__).with_name("archive.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """How a backend runs a guest."""

    command: Sequence[str]
    """What the guest's own command is appended to."""
    interpreter: str = "python3"
    workspace: str = WORKSPACE
    inputs: str = INPUTS
    is_counting_processes: bool = False
    """Whether the backend bounds the number of processes; otherwise the guest does, by rlimit."""
    is_guest_hiding: bool = True
    """Whether the guest hides from programs; otherwise the backend refuses to look into others."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of the outermost process; programs get another."""
    open_files: Sequence[int] = ()
    """Descriptors that the command names by number."""


class GuestSandbox:
    """A sandbox whose guest answers over a socket; see `protocol.Sandbox`.

    Args:
        limits: What programs may use.
        lease: Already open; it is released with the sandbox.
    """

    def __init__(self, limits: SandboxLimits, lease: Lease) -> None:
        self.limits = limits
        self._lease = lease
        self._turn = asyncio.Lock()
        self._process: subprocess.Popen | None = None
        self._socket, self._guest_end = socket.socketpair()
        self._socket.setblocking(False)
        self._complaints = os.memfd_create("complaints")
        self._inputs = INPUTS
        self._end = ""
        """Why it ended; empty while it lives."""

    @property
    def lease(self) -> Lease:
        """Who holds it, and for how long."""
        return self._lease

    @property
    def inputs(self) -> str:
        """Folder of the files that it was started with."""
        return self._inputs

    async def start(self, confinement: Confinement) -> None:
        """Start the guest and wait until it reports.

        Raises:
            SandboxError: it does not; nothing is left of it.
        """
        self._inputs = confinement.inputs
        try:
            self._spawn(confinement)
            await asyncio.wait_for(self._receive(0), START_SECONDS)
        except BaseException as error:
            complaint = os.pread(self._complaints, 2000, 0).decode("utf-8", "replace").strip()
            await self.stop()
            if not isinstance(error, Exception):
                raise
            reason = complaint.splitlines()[-1] if complaint else str(error) or "no answer"
            raise SandboxError(f"the sandbox did not start: {reason}") from error

    def _spawn(self, confinement: Confinement) -> None:
        settings = {
            "workspace": confinement.workspace,
            "cpu_seconds": self.limits.cpu_seconds,
            "memory_bytes": self.limits.memory_mib << 20,
            "max_processes": 0 if confinement.is_counting_processes else self.limits.max_processes,
            "is_hiding": confinement.is_guest_hiding,
            "max_file_bytes": self.limits.disk_mib << 20,
        }
        guest = [confinement.interpreter, "-I", "-S", "-c", GUEST.read_text(encoding="ascii")]
        self._process = subprocess.Popen(
            [*confinement.command, *guest, repr(settings)],
            stdin=self._guest_end.fileno(),
            stdout=self._guest_end.fileno(),
            stderr=self._complaints,
            cwd="/",
            env=dict(confinement.environment),
            pass_fds=tuple(confinement.open_files),
        )
        self._guest_end.close()  # so that the end of the guest is the end of the socket
        identity = ProcessIdentity.of(self._process.pid)
        self._lease = self._lease.record(sandbox_process=identity)

    def assign(self, owner: str, ttl_seconds: float) -> bool:
        """Hand the sandbox to another owner; see `protocol.Sandbox`."""
        if self._end or self._process is None or self._process.poll() is not None:
            return False
        if not self._lease.renew():
            return False
        self._lease = self._lease.record(owner=owner, ttl_seconds=ttl_seconds)
        return True

    async def exec(
        self, argv: Sequence[str], *, stdin: bytes = b"", wall_seconds: float | None = None
    ) -> ExecResult:
        """Run a program in the workspace to its end; see `protocol.Sandbox`."""
        if not argv:
            raise ValueError("a program has a name: argv is empty")
        wall = self.limits.wall_seconds if wall_seconds is None else wall_seconds
        return await self._exec(argv, stdin, wall, self.limits.max_output_bytes)

    async def _exec(
        self, argv: Sequence[str], stdin: bytes, wall: float, max_output: int
    ) -> ExecResult:
        request = {
            "do": "exec",
            "argv": [*argv],
            "wall_seconds": wall,
            "max_output": max_output,
        }
        header, (stdout, stderr) = await self._ask(request, stdin, 2, wall + GRACE_SECONDS)
        return ExecResult(
            stdout=stdout,
            stderr=stderr,
            exit_code=header["exit_code"],
            timed_out=header["timed_out"],
            truncated=header["truncated"],
            seconds=header["seconds"],
        )

    async def read(self, path: str, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """Return the bytes of a file in the workspace; see `protocol.Sandbox`."""
        request = {"do": "read", "path": path, "max_bytes": max_bytes}
        _, (content,) = await self._ask(request, b"", 1, _FILE_SECONDS)
        return content

    async def write(self, path: str, content: bytes) -> None:
        """Write a file in the workspace; see `protocol.Sandbox`."""
        await self._ask({"do": "write", "path": path}, content, 0, _FILE_SECONDS)

    async def snapshot(self) -> bytes:
        """Return the workspace as one tar file; see `protocol.Sandbox`."""
        # Twice the disk: every file has a header of its own.
        return await self._archive("pack", b"", self.limits.disk_mib << 21)

    async def restore(self, snapshot: bytes) -> None:
        """Make the workspace what it was at a snapshot; see `protocol.Sandbox`."""
        await self._archive("unpack", snapshot, self.limits.max_output_bytes)

    async def _archive(self, action: str, stdin: bytes, max_output: int) -> bytes:
        argv = ["python3", "-I", "-S", "-c", ARCHIVE.read_text(encoding="ascii"), action]
        result = await self._exec(argv, stdin, _FILE_SECONDS, max_output)
        if result.truncated:
            raise WorkspaceError(f"the snapshot has more than {max_output} bytes")
        if result.exit_code != 0:
            reason = result.stderr.decode("utf-8", "replace") or f"exit code {result.exit_code}"
            raise WorkspaceError(f"cannot {action} the workspace: {reason.splitlines()[-1]}")
        return result.stdout

    async def stop(self) -> None:
        """End every process, remove every file; a second call does nothing."""
        if self._end:
            return
        self._end = "it is stopped"
        for end in (self._socket, self._guest_end):
            end.close()
        os.close(self._complaints)
        try:
            if self._process is not None:
                await _wait_for_end(self._process)
        finally:
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            self._lease.release()

    async def _ask(
        self, request: Mapping[str, object], content: bytes, num_contents: int, seconds: float
    ) -> tuple[dict, list[bytes]]:
        """Send a request and wait for its reply; the sandbox ends where that fails."""
        async with self._turn:
            if not self._end and not self._lease.renew():
                await self.stop()
                self._end = "its lease ran out"
            if self._end:
                raise SandboxError(f"the sandbox cannot be used: {self._end}")
            text = repr({**request, "size": len(content)}).encode("utf-8", "surrogateescape")
            message = len(text).to_bytes(4, "big") + text + content
            try:
                async with asyncio.timeout(seconds):
                    await asyncio.get_running_loop().sock_sendall(self._socket, message)
                    header, contents = await self._receive(num_contents)
            except BaseException as error:
                # Whatever it was, the next reply would belong to this request.
                await self.stop()
                if isinstance(error, Exception) and not isinstance(error, SandboxError):
                    reason = str(error) or f"no answer within {seconds:.0f} s"
                    raise SandboxError(f"the sandbox broke: {reason}") from error
                raise
        if "refused" in header:
            raise WorkspaceError(f"{request.get('path', request['do'])}: {header['refused']}")
        return header, contents

    async def _receive(self, num_contents: int) -> tuple[dict, list[bytes]]:
        size = int.from_bytes(await self._receive_exactly(4), "big")
        if size > _MAX_HEADER_BYTES:
            raise SandboxError("the guest sent something else")
        header = json.loads(await self._receive_exactly(size))
        sizes = header["sizes"]
        if "refused" not in header and len(sizes) != num_contents:
            raise SandboxError("the guest sent something else")
        return header, [await self._receive_exactly(size) for size in sizes]

    async def _receive_exactly(self, size: int) -> bytes:
        loop = asyncio.get_running_loop()
        content = bytearray()
        while len(content) < size:
            part = await loop.sock_recv(self._socket, min(size - len(content), 1 << 20))
            if not part:
                raise SandboxError("the sandbox ended")
            content += part
        return bytes(content)


async def _wait_for_end(process: subprocess.Popen) -> None:
    """Give a guest whose caller has hung up the time to end its processes and itself."""
    if process.poll() is not None:
        return
    loop = asyncio.get_running_loop()
    handle = os.pidfd_open(process.pid)
    ended = loop.create_future()
    loop.add_reader(handle, lambda: ended.done() or ended.set_result(None))
    try:
        await asyncio.wait([ended], timeout=STOP_SECONDS)
    finally:
        loop.remove_reader(handle)
        os.close(handle)


def write_inputs(lease: Lease, inputs: Mapping[str, bytes]) -> Path:
    """Write the files of a sandbox into a folder of its lease, where programs may only read.

    Raises:
        OSError: they cannot be written.
    """
    folder = Path(lease.folder) / "inputs"
    folder.mkdir()
    for name, content in inputs.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o444)
    folder.chmod(0o755)  # the lease's owner has to empty it one day
    return folder


async def start_guest(
    limits: SandboxLimits, lease: Lease, confinement: Confinement
) -> GuestSandbox:
    """Start a sandbox; the lease is released where that fails.

    Raises:
        SandboxError: it does not start.
    """
    sandbox = GuestSandbox(limits, lease)
    await sandbox.start(confinement)
    return sandbox
