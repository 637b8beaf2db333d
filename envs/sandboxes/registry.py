"""Names to backends, and the choice where none is named.

Further backends register in the entry-point group `limosa.sandboxes`. Without a name the first of
`DEFAULTS` that works here is taken; where none works nothing runs. There is no backend that does
not confine.
"""

import asyncio
import os
from collections.abc import Mapping
from weakref import WeakKeyDictionary

from envs.registry import load_named
from envs.sandboxes.lease import DEFAULT_TTL_SECONDS, open_lease, reap
from envs.sandboxes.protocol import NO_INPUTS, Backend, Sandbox, SandboxError, SandboxLimits
from envs.sandboxes.slots import Slots

ENTRY_POINTS = "limosa.sandboxes"
DEFAULTS = ("envs.sandboxes.bubblewrap:BACKEND", "envs.sandboxes.sandlock:BACKEND")
"""In this order; named by path, so that they are there before anything is installed."""

_CHOICES: dict[tuple[str, ...], Backend] = {}
_STARTING = Slots(2 * (os.cpu_count() or 1))
"""A crowd that starts at once would take turns on the cores until each of them is late."""
_CHOOSING: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


def load_backend(name: str) -> Backend:
    """Load a backend.

    Args:
        name: Registered name, such as `docker`, or dotted path.

    Raises:
        ValueError: one line: no such name, or it cannot be imported.
    """
    backend = load_named("sandbox", ENTRY_POINTS, name)
    for attribute in ("name", "find_problem", "start"):
        if not hasattr(backend, attribute):
            raise ValueError(f"sandbox {name!r} is a {type(backend).__name__}, no backend")
    return backend  # pyright: ignore[reportReturnType]  just looked at


async def choose_backend() -> Backend:
    """Return the first default that works on this machine, found out once per process.

    Raises:
        SandboxError: none works; one line names each with its reason.
    """
    lock = _CHOOSING.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    async with lock:
        if DEFAULTS not in _CHOICES:
            reap()
            _CHOICES[DEFAULTS] = await _find_first_that_works()
        return _CHOICES[DEFAULTS]


async def _find_first_that_works() -> Backend:
    problems = []
    for name in DEFAULTS:
        backend = load_backend(name)
        problem = await backend.find_problem()
        if problem is None:
            return backend
        problems.append(f"{backend.name}: {problem}")
    raise SandboxError(f"nothing on this machine confines programs: {'; '.join(problems)}")


async def start_sandbox(
    limits: SandboxLimits | None = None,
    *,
    owner: str,
    ttl_seconds: float = DEFAULT_TTL_SECONDS,
    backend: Backend | None = None,
    inputs: Mapping[str, bytes] = NO_INPUTS,
) -> Sandbox:
    """Start a sandbox; whoever asks has to stop it, and the reaper does where they do not.

    Args:
        limits: What programs may use; the defaults of `SandboxLimits` where None.
        owner: Whose it is, for people: `episode 17`.
        ttl_seconds: From its last operation until anybody may end it.
        backend: What confines it; the first that works here where None.
        inputs: Files for programs to read, by name; see `protocol.Backend`.

    Raises:
        SandboxError: it does not start.
    """
    backend = backend or await choose_backend()
    async with _STARTING:
        lease = open_lease(owner, ttl_seconds)
        return await backend.start(limits or SandboxLimits(), lease, inputs)
