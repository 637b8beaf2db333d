"""Leases: what belongs to nobody any more goes."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envs.sandboxes import bubblewrap, lease as leases, sandlock
from envs.sandboxes.lease import ProcessIdentity, list_leases, open_lease, reap
from envs.sandboxes.protocol import SandboxError, SandboxLimits

LIMITS = SandboxLimits(wall_seconds=60.0)
BACKENDS = {"bubblewrap": bubblewrap.BACKEND, "sandlock": sandlock.BACKEND}


@pytest.fixture(autouse=True)
def own_leases(tmp_path, monkeypatch):
    """Leases of these tests alone: others on this machine are not reaped by them."""
    tmp_path.chmod(0o711)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(leases.tempfile, "tempdir", None)
    for folder in tmp_path.parents:
        if os.geteuid() == 0 and folder.stat().st_uid == 0 and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o001)
    yield
    monkeypatch.setattr(leases.tempfile, "tempdir", None)


def test_a_lease_is_listed_renewed_and_released():
    lease = open_lease("episode 17", ttl_seconds=100.0)
    assert list_leases() == [lease]
    assert lease.owner_process == ProcessIdentity.of(os.getpid())
    assert 99 < lease.seconds_left() <= 100
    os.utime(Path(lease.folder) / "lease.json", (0, 0))
    assert lease.seconds_left() < 0
    assert lease.renew()
    assert lease.seconds_left() > 99
    lease.release()
    lease.release()
    assert list_leases() == []
    assert not lease.renew()


@pytest.mark.parametrize("ttl", [0.0, -1.0, float("nan")])
def test_a_lease_that_never_lives_is_refused(ttl):
    with pytest.raises(ValueError, match="more than 0 seconds"):
        open_lease("x", ttl)


def test_a_folder_of_somebody_else_is_refused(monkeypatch):
    root = leases.lease_root()
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    root.rename(root.with_name("limosa-sandboxes-4242"))
    with pytest.raises(PermissionError, match="somebody else"):
        open_lease("x")


def test_a_link_in_place_of_the_folder_is_refused(tmp_path):
    root = leases.lease_root()
    root.rmdir()
    (tmp_path / "elsewhere").mkdir()
    root.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="somebody else"):
        open_lease("x")


def test_the_reaper_leaves_the_living_alone():
    lease = open_lease("alive", ttl_seconds=100.0)
    assert reap() == []
    assert list_leases() == [lease]


def test_a_later_process_with_the_same_number_is_another():
    me = ProcessIdentity.of(os.getpid())
    assert me.is_alive()
    assert not ProcessIdentity(pid=me.pid, started=me.started - 1).is_alive()
    with pytest.raises(OSError, match="No such file"):
        ProcessIdentity.of(2**22 + 1)


def test_the_reaper_does_not_kill_a_process_that_took_the_number_over():
    innocent = subprocess.Popen(["sleep", "60"])
    facts = ProcessIdentity.of(innocent.pid)
    lease = open_lease("old", ttl_seconds=100.0)
    lease.record(sandbox_process=ProcessIdentity(pid=facts.pid, started=facts.started - 1))
    os.utime(Path(lease.folder) / "lease.json", (0, 0))
    assert reap() == [lease.id]
    assert innocent.poll() is None
    innocent.kill()
    innocent.wait()


def test_a_record_that_cannot_be_read_hides_no_other():
    broken, whole = open_lease("broken"), open_lease("whole")
    (Path(broken.folder) / "lease.json").write_text("{")
    assert list_leases() == [whole]
    assert reap() == []


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_lease_that_ran_out_ends_the_sandbox(backend):
    sandbox = await BACKENDS[backend].start(LIMITS, open_lease("slow", ttl_seconds=100.0))
    assert (await sandbox.exec(["true"])).exit_code == 0
    os.utime(Path(sandbox.lease.folder) / "lease.json", (0, 0))
    assert reap() == [sandbox.lease.id]
    assert not Path(sandbox.lease.folder).exists()
    with pytest.raises(SandboxError, match="its lease ran out"):
        await sandbox.exec(["true"])
    await assert_ended(sandbox.lease)
    await sandbox.stop()


@pytest.mark.parametrize("backend", BACKENDS)
async def test_each_operation_renews_the_lease(backend):
    sandbox = await BACKENDS[backend].start(LIMITS, open_lease("busy", ttl_seconds=100.0))
    os.utime(Path(sandbox.lease.folder) / "lease.json", (0, time.time() - 99))
    assert sandbox.lease.seconds_left() < 2
    await sandbox.write("x", b"")
    assert sandbox.lease.seconds_left() > 90
    await sandbox.stop()


OWNER = """
import asyncio
from envs.sandboxes import bubblewrap, sandlock
from envs.sandboxes.lease import open_lease
from envs.sandboxes.protocol import SandboxLimits

async def own():
    sandbox = await {backend}.BACKEND.start(SandboxLimits(), open_lease("doomed"))
    await sandbox.write("file", b"x")
    print(sandbox.lease.id, flush=True)
    await sandbox.exec(["sh", "-c", "sleep {marker} & sleep {marker}"], wall_seconds=300)

asyncio.run(own())
"""


@pytest.mark.parametrize("backend", BACKENDS)
async def test_the_reaper_removes_what_a_killed_owner_left(backend):
    marker = f"8{os.getpid()}"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(backend=backend, marker=marker)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    key = owner.stdout.readline().strip()
    lease = next(lease for lease in list_leases() if lease.id == key)
    await wait_until(lambda: len(processes_with(marker)) >= 2)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    assert Path(lease.folder).exists(), "a crash leaves its folder"
    assert reap() == [key]
    await wait_until(lambda: not processes_with(marker))
    await assert_ended(lease)
    assert not Path(lease.folder).exists()
    assert [group for group in lease.control_groups if Path(group).exists()] == []
    assert list_leases() == []


async def assert_ended(lease):
    assert lease.sandbox_process is not None
    await wait_until(lambda: not is_running(lease.sandbox_process))


def is_running(identity):
    """A zombie has ended, even if nobody has asked how."""
    try:
        state = Path(f"/proc/{identity.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return identity.is_alive() and state != "Z"


async def wait_until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.02)


def processes_with(argument):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if argument.encode() in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
        except OSError:
            continue
    return found
