"""The memory of this process and of all that it started, at its highest."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

PERIOD_SECONDS = 0.05


class MemoryWatch:
    """Looks at resident memory from a thread; `with` it.

    Pages that processes share count once for each, so it says rather too much than too little.
    Files in the memory of a sandbox belong to no process and are not seen.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-watch", daemon=True)

    def __enter__(self) -> "MemoryWatch":
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Look a last time."""
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._end.wait(PERIOD_SECONDS)
            self.peak_bytes = max(self.peak_bytes, sum(map(resident_bytes, process_tree())))


def process_tree() -> list[int]:
    """List this process and all below it."""
    children: dict[int, list[int]] = {}
    for process, parent in _parents():
        children.setdefault(parent, []).append(process)
    found, tree = [os.getpid()], []
    while found:
        process = found.pop()
        tree.append(process)
        found += children.get(process, [])
    return tree


def resident_bytes(process: int) -> int:
    """Return the resident memory of a process; 0 where it has ended."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _parents() -> Iterator[tuple[int, int]]:
    """Yield all processes, each with its parent."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                facts = Path(entry.path, "stat").read_bytes()
            except OSError:  # ended meanwhile
                continue
            # The name, in parentheses, may hold anything.
            yield int(entry.name), int(facts.rpartition(b")")[2].split()[1])
