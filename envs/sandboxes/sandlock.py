"""The backend for machines without namespaces: sandlock, that is Landlock and seccomp.

Programs see the host's file system, but reach only the system's folders and their own workspace:
a folder of the lease, which the reaper removes. There is no network, no other process, a bound on
the memory and the number of all processes together. Weaker than bubblewrap in one point: each
file is bounded, but not all files of the workspace together.
"""

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from envs.sandboxes.bubblewrap import ROOT_STAND_IN, become_stand_in, find_interpreter
from envs.sandboxes.lease import Lease, open_lease
from envs.sandboxes.protocol import NO_INPUTS, SandboxError, SandboxLimits
from envs.sandboxes.session import Confinement, GuestSandbox, start_guest, write_inputs

_OWN_MIB = 48
"""Memory of the guest, on top of what programs may use."""

_SUPERVISOR = """
import sys
sys.path.insert(0, sys.argv[1])
from sandlock import Sandbox
workspace, memory, processes, *readable = sys.argv[2:sys.argv.index("--")]
confined = Sandbox(
    fs_writable=[workspace, "/dev/null"],
    fs_readable=[*readable, "/dev/urandom", "/dev/zero", "/proc"],
    max_memory=int(memory),
    max_processes=int(processes),
    clean_env=True,
    no_coredump=True,
    cwd=workspace,
)
with confined.popen(sys.argv[sys.argv.index("--") + 1:]) as process:
    process.wait()
"""


class Sandlock:
    """Sandboxes without namespaces; see `protocol.Backend`."""

    name = "sandlock"

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
            folder = _find_sandlock()
            interpreter, folders = find_interpreter()
            drop_root = become_stand_in()
            workspace = Path(lease.folder) / "work"
            workspace.mkdir(mode=0o700)
            if drop_root:
                os.chown(workspace, ROOT_STAND_IN, ROOT_STAND_IN)
            given = write_inputs(lease, inputs)
        except (SandboxError, OSError) as error:
            lease.release()
            raise SandboxError(f"the sandbox did not start: {error}") from error
        supervisor = [sys.executable, "-I", "-S", "-c", _SUPERVISOR, str(folder)]
        bounds = [str(limits.memory_mib + _OWN_MIB << 20), str(limits.max_processes + 1)]
        readable = [str(path) for path in (*folders, given) if path.exists()]
        confinement = Confinement(
            # Root is dropped inside: the supervisor may live where only root can read.
            command=[*supervisor, str(workspace), *bounds, *readable, "--", *drop_root],
            interpreter=str(interpreter),
            workspace=str(workspace),
            inputs=str(given),
            is_counting_processes=True,
            is_guest_hiding=False,
            environment={"HOME": "/"},  # of the supervisor: it asks, and a user may have none
        )
        return await start_guest(limits, lease, confinement)


def _find_sandlock() -> Path:
    """Find the folder to import sandlock from."""
    found = importlib.util.find_spec("sandlock")
    if found is None or found.origin is None:
        raise SandboxError("sandlock is missing: `pip install sandlock`")
    return Path(found.origin).parents[1]


BACKEND = Sandlock()
