"""Leases: who holds a sandbox, until when, and what has to go when nobody does.

Every sandbox has a folder that names its owner's process and its own. `reap` ends those whose
owner died or whose time ran out, from any process of the same user: a crash leaves nothing for
longer than until somebody starts the next sandbox.
"""

import json
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from uuid import uuid4

DEFAULT_TTL_SECONDS = 3600.0
"""Of a lease that nothing renews: longer than any one operation."""
_RECORD = "lease.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """A process that cannot be mistaken for a later one with the same number."""

    pid: int
    started: int
    """Clock ticks after boot."""

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity":
        """Identify a living process.

        Raises:
            OSError: there is none.
        """
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        # The name, in parentheses, may hold anything; the start time is field 22 of `proc(5)`.
        return cls(pid=pid, started=int(text.rpartition(")")[2].split()[19]))

    def is_alive(self) -> bool:
        """Whether that very process still exists."""
        with suppress(OSError):
            return ProcessIdentity.of(self.pid) == self
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to a sandbox; renewed by each of its operations."""

    owner: str
    """For people: `episode 17`."""
    ttl_seconds: float
    """From the last renewal until anybody may end it."""
    owner_process: ProcessIdentity
    folder: str
    """Of this sandbox alone, on the host."""
    sandbox_process: ProcessIdentity | None = None
    """With this one all others of the sandbox end."""
    control_groups: tuple[str, ...] = ()
    stop_command: tuple[str, ...] = ()
    """Ends what does not end with the process, such as a container."""

    @property
    def id(self) -> str:
        """Unique name."""
        return Path(self.folder).name

    def seconds_left(self) -> float:
        """Time until the lease runs out; negative where it did or was taken away."""
        try:
            renewed = (Path(self.folder) / _RECORD).stat().st_mtime
        except OSError:
            return -1.0
        return renewed + self.ttl_seconds - time.time()

    def renew(self) -> bool:
        """Count the time to live from now; False where the lease is gone."""
        try:
            os.utime(Path(self.folder) / _RECORD)
        except OSError:
            return False
        return True

    def record(self, **facts: object) -> "Lease":
        """Write more facts down, such as the sandbox's process, and return the lease with them."""
        lease = replace(self, **facts)  # pyright: ignore[reportArgumentType]  fields by name
        path = Path(self.folder) / _RECORD
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps(asdict(lease)), encoding="utf-8")
        draft.replace(path)
        return lease

    def release(self) -> None:
        """End the sandbox and remove all that belongs to it. May be called twice."""
        if self.sandbox_process is not None and self.sandbox_process.is_alive():
            with suppress(ProcessLookupError):
                os.kill(self.sandbox_process.pid, signal.SIGKILL)
        if self.stop_command:
            subprocess.run(self.stop_command, check=False, capture_output=True, timeout=60)
        for group in self.control_groups:
            _remove_control_group(Path(group))
        # Links in there are removed, not followed: `rmtree` walks by descriptor.
        shutil.rmtree(self.folder, ignore_errors=True)


def open_lease(owner: str, ttl_seconds: float = DEFAULT_TTL_SECONDS) -> Lease:
    """Open a lease for a sandbox of this process.

    Args:
        owner: Whose it is, for people.
        ttl_seconds: From its last operation until anybody may end it.

    Raises:
        ValueError: the time to live is not positive.
        OSError: the folder of leases cannot be made or belongs to somebody else.
    """
    if not ttl_seconds > 0:
        raise ValueError(f"a lease lives for more than 0 seconds, not {ttl_seconds}")
    folder = lease_root() / uuid4().hex[:16]
    folder.mkdir()
    folder.chmod(0o711)  # programs may run as another user, and reach their own folder
    lease = Lease(
        owner=owner,
        ttl_seconds=ttl_seconds,
        owner_process=ProcessIdentity.of(os.getpid()),
        folder=str(folder),
    )
    return lease.record()


def lease_root() -> Path:
    """Return the folder of this user's leases, made where it is missing.

    Raises:
        OSError: it cannot be made, or somebody else made it.
    """
    root = Path(tempfile.gettempdir()) / f"limosa-sandboxes-{os.geteuid()}"
    root.mkdir(mode=0o711, exist_ok=True)
    facts = root.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
        raise PermissionError(f"{root} belongs to somebody else")
    return root


def list_leases() -> Sequence[Lease]:
    """Return the leases of this user's sandboxes, in all processes."""
    leases = []
    for path in sorted(lease_root().glob(f"*/{_RECORD}")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            leases.append(_parse(json.loads(path.read_text(encoding="utf-8"))))
    return leases


def reap() -> Sequence[str]:
    """End the sandboxes whose owner died or whose lease ran out.

    Returns:
        The ids of those that were ended.
    """
    ended = []
    for lease in list_leases():
        if lease.seconds_left() > 0 and lease.owner_process.is_alive():
            continue
        lease.release()
        ended.append(lease.id)
    return ended


def _parse(record: dict) -> Lease:
    for name in ("owner_process", "sandbox_process"):
        if record[name] is not None:
            record[name] = ProcessIdentity(**record[name])
    for name in ("control_groups", "stop_command"):
        record[name] = tuple(record[name])
    return Lease(**record)


def _remove_control_group(group: Path) -> None:
    """Kill what is still in a control group and remove it; takes up to a second."""
    deadline = time.monotonic() + 1.0
    while group.exists() and time.monotonic() < deadline:
        with suppress(OSError):
            for pid in (group / "cgroup.procs").read_text(encoding="ascii").split():
                os.kill(int(pid), signal.SIGKILL)
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.002)
