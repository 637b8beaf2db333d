"""Control groups: the one bound on the memory of all processes of a sandbox together.

Both versions of the kernel's interface are tried, below this process's own group and at the root
of the hierarchy. Where this user may not make groups there are none, and the bound on memory is
per process times the number of processes; `limosa doctor` says which it is.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

HIERARCHY = Path("/sys/fs/cgroup")


def make_control_groups(name: str, memory_bytes: int, max_processes: int) -> Sequence[Path]:
    """Make groups with limits, in which a sandbox can be started.

    Args:
        name: Unique name.
        memory_bytes: Of all processes together, files in memory included.
        max_processes: Processes and threads at once.

    Returns:
        The groups' folders: one (version 2), one per controller (version 1), or none.
    """
    limits = {"memory.max": memory_bytes, "memory.swap.max": 0, "pids.max": max_processes}
    for parent in _parents(""):
        group = _make(parent / name, limits, needed="memory.max")
        if group is not None:
            return [group]
    groups = []
    for controller, limits in {
        "memory": {"memory.limit_in_bytes": memory_bytes},
        "pids": {"pids.max": max_processes},
    }.items():
        needed = next(iter(limits))
        made = (_make(parent / name, limits, needed) for parent in _parents(controller))
        groups += [group for group in (next(filter(None, made), None),) if group]
    return groups


def can_make_control_groups() -> bool:
    """Whether this user may bound the memory of a group of processes on this machine."""
    groups = make_control_groups(f"limosa-probe-{os.getpid()}", 1 << 30, 10)
    for group in groups:
        group.rmdir()
    return any((group.parent / "memory.stat").exists() for group in groups)


def enter_command(groups: Sequence[Path]) -> list[str]:
    """Return the start of a command line that enters groups and then runs the rest of it."""
    if not groups:
        return []
    steps = [f"echo $$ > '{group}/cgroup.procs'" for group in groups]
    return ["/bin/sh", "-c", " && ".join([*steps, 'exec "$@"']), "sh"]


def _parents(controller: str) -> Iterator[Path]:
    """List where groups could be made; an empty controller means version 2."""
    with suppress(OSError):
        if not controller:
            yield HIERARCHY
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                root = HIERARCHY / controller
                yield root / path.lstrip("/")
                yield root


def _make(group: Path, limits: Mapping[str, int], needed: str) -> Path | None:
    """Make one group; None where that, or the limit that is needed, is not to be had."""
    if not (group.parent / "cgroup.procs").exists():  # an empty version 2 in a mix of both
        return None
    try:
        group.mkdir()
    except OSError:
        return None
    try:
        with (group / needed).open("r+", encoding="ascii") as file:
            file.write(str(limits[needed]))
    except OSError:
        group.rmdir()
        return None
    for name, value in limits.items():
        with suppress(OSError):
            if (group / name).exists():
                (group / name).write_text(str(value), encoding="ascii")
    return group
