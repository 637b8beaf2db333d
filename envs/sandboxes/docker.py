"""The backend for machines with Docker: a container of an image that has `python3`.

Never taken by default: whoever may talk to the engine is root on its machine, and an image has to
be there. `docker` in the entry-point group `limosa.sandboxes`.
"""

import asyncio
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from envs.sandboxes.lease import Lease
from envs.sandboxes.protocol import (
    INPUTS,
    NO_INPUTS,
    WORKSPACE,
    SandboxError,
    SandboxLimits,
)
from envs.sandboxes.session import Confinement, GuestSandbox, start_guest, write_inputs

IMAGE = "python:3.11-slim"
NOBODY = "65534:65534"
_OWN_MIB = 48
"""Memory of the guest, on top of what programs may use."""
_ANSWER_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Docker:
    """Sandboxes in containers; see `protocol.Backend`."""

    image: str = IMAGE
    """Must be on the machine and have `python3`; nothing is pulled."""
    name: str = "docker"

    async def find_problem(self) -> str | None:
        """Ask the engine for the image and say in one line what is wrong; None where it is."""
        command = shutil.which("docker")
        if command is None:
            return "docker is not installed"
        process = await asyncio.create_subprocess_exec(
            *(command, "image", "inspect", "--format", "ok", self.image),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, complaint = await asyncio.wait_for(process.communicate(), _ANSWER_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
            return f"docker does not answer within {_ANSWER_SECONDS:.0f} s"
        if process.returncode != 0:
            lines = complaint.decode("utf-8", "replace").strip().splitlines()
            return lines[-1] if lines else f"docker ended with {process.returncode}"
        return None

    async def start(
        self, limits: SandboxLimits, lease: Lease, inputs: Mapping[str, bytes] = NO_INPUTS
    ) -> GuestSandbox:
        """Start a sandbox with an empty workspace; see `protocol.Backend`."""
        command = shutil.which("docker")
        if command is None:
            lease.release()
            raise SandboxError("the sandbox did not start: docker is not installed")
        container = f"limosa-{lease.id}"
        lease = lease.record(stop_command=(command, "rm", "--force", container))
        options = ["run", "--rm", "--interactive", "--name", container, "--pull", "never"]
        options += ["--network", "none", "--read-only", "--cap-drop", "ALL", "--user", NOBODY]
        options += ["--security-opt", "no-new-privileges", "--ipc", "none"]
        options += ["--memory", f"{limits.memory_mib + limits.disk_mib + _OWN_MIB}m"]
        options += ["--pids-limit", str(limits.max_processes + 2), "--workdir", WORKSPACE]
        owned = "uid=65534,gid=65534,mode=0700"
        options += ["--tmpfs", f"{WORKSPACE}:size={limits.disk_mib}m,exec,{owned}"]
        if inputs:
            options += ["--volume", f"{write_inputs(lease, inputs)}:{INPUTS}:ro"]
        options += ["--tmpfs", "/tmp:size=16m", "--entrypoint", "", self.image]
        confinement = Confinement(
            command=[command, *options],
            is_counting_processes=True,
            environment=_own_environment(),
        )
        return await start_guest(limits, lease, confinement)


def _own_environment() -> dict[str, str]:
    """Of the command line `docker` alone: how it finds its engine. The container gets none."""
    return {
        name: os.environ[name] for name in ("PATH", "HOME", "DOCKER_HOST") if name in os.environ
    }


BACKEND = Docker()
