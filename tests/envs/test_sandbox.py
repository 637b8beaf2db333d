"""The sandbox: what a program can do, what it cannot, and what counts as its own fault."""

import asyncio
import dataclasses
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from envs import sandbox
from envs.sandbox import SandboxError, SandboxLimits, run_python

QUICK = SandboxLimits(wall_seconds=60.0, cpu_seconds=1)
"""Wall time for a machine on which much else runs."""


async def run(program, stdin="", limits=QUICK):
    return await run_python(program, stdin, limits)


async def test_a_program_reads_and_prints():
    result = await run("import sys\nprint(sys.stdin.read().upper(), __name__, sys.argv)", "héllo")
    assert result.stdout.decode() == "HÉLLO __main__ ['-c']\n"
    assert result.exit_code == 0
    assert not result.timed_out
    assert not result.truncated


async def test_inputs_are_mounted_read_only():
    program = """
import os, sys
path = sys.argv[1] + "/secret.txt"
def write(): open(path, "w")
def change_mode(): os.chmod(path, 0o666)
def move_over(): open("o", "w").close(); os.replace("o", path)
def remove(): os.unlink(path)
def add(): open(sys.argv[1] + "/new", "w")
for way in (write, change_mode, move_over, remove, add):
    try: way(); print(way.__name__)
    except OSError: pass
print(open(path).read())
"""
    result = await run_python(program, inputs={"secret.txt": b"as it was"})
    assert result.stdout == b"as it was\n"


async def test_a_program_that_raises_has_an_exit_code_and_no_output():
    result = await run("raise KeyError('secret')")
    assert (result.exit_code, result.stdout) == (1, b"")
    assert (await run("import sys; sys.exit(7)")).exit_code == 7
    assert (await run("this is no python")).exit_code == 1
    assert (await run("import os; os.kill(os.getpid(), 9)")).exit_code == 128 + 9


async def test_there_is_no_environment_no_file_and_no_process_of_the_host(monkeypatch):
    monkeypatch.setenv("SECRET", "x")
    program = """
import os
print(sorted(os.environ))
print([name for name in ("/etc", "/root", "/home", "/var", "/sys", "/mnt") if os.path.exists(name)])
print(len([name for name in os.listdir("/proc") if name.isdigit()]))
print(os.listdir("."))
"""
    lines = (await run(program)).stdout.decode().splitlines()
    assert set(eval(lines[0])) <= {"PWD", "LC_CTYPE"}
    assert lines[1] == "[]"
    assert int(lines[2]) <= 2
    assert lines[3] == "[]"


async def test_a_program_is_never_root():
    program = """
import os
print(os.getuid(), os.geteuid(), open("/proc/self/uid_map").read().split()[1])
print([line for line in open("/proc/self/status") if line.startswith("CapEff")])
"""
    lines = (await run(program)).stdout.decode().splitlines()
    assert lines[0].split()[:2] == ["65534", "65534"]
    assert "0000000000000000" in lines[1]


async def test_a_program_runs_as_a_stand_in_where_the_caller_is_root():
    if os.geteuid() != 0:
        pytest.skip("the caller is not root")
    limits = SandboxLimits(cpu_seconds=77_001, wall_seconds=60.0)
    task = asyncio.create_task(run("import time; time.sleep(60)", limits=limits))
    await wait_until(lambda: owners_of(find_processes("77001")) == {sandbox.ROOT_STAND_IN})
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def wait_until(condition):
    """Poll for up to 30 seconds."""
    for _ in range(300):
        if condition():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("it never came true")


def owners_of(processes):
    """Tell whose the processes are that still live."""
    return {process.stat().st_uid for process in processes if process.exists()}


def find_processes(argument):
    """Find the processes on this machine that were started with an argument."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if argument.encode() in arguments:
            found.append(process)
    return found


@pytest.mark.parametrize(
    "attempt",
    [
        "open('/usr/written', 'w')",
        "open('/written', 'w')",
        "open('/dev/shm/written', 'w')",
        "import os; os.mkdir('/usr/lib/written')",
        "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0",
        "import os; os.setuid(0)",
        "import ctypes; assert ctypes.CDLL(None).mount(b'x', b'/tmp', b'tmpfs', 0, 0) == 0",
        "open('/etc/shadow')",
        "open('big', 'w').write('x' * 1_000_000)",
        "import resource; resource.setrlimit(resource.RLIMIT_NPROC, (999, 999))",
        "x = bytearray(400 << 20)",
    ],
)
async def test_what_is_not_allowed_raises(attempt):
    program = (
        f"try:\n    {attempt}\n    print('did it')\nexcept BaseException:\n    print('refused')"
    )
    assert (await run(program)).stdout == b"refused\n"


async def test_the_network_is_out_of_reach():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        program = f"""
import socket
try:
    socket.create_connection(("127.0.0.1", {port}), timeout=2)
    print("connected")
except OSError:
    print("refused")
"""
        assert (await run(program)).stdout == b"refused\n"


async def test_a_fork_bomb_is_bounded_and_leaves_nothing():
    program = """
import os, time
children = 0
for _ in range(100):
    try:
        if os.fork() == 0:
            time.sleep(300)
            os._exit(0)
        children += 1
    except OSError:
        break
os.write(1, b"%d" % children)
os._exit(0)
"""
    started = time.monotonic()
    result = await run(program)
    assert 0 < int(result.stdout) <= QUICK.max_processes
    assert time.monotonic() - started < 60, "the children ended with the sandbox"


async def test_a_busy_program_runs_out_of_cpu_time():
    result = await run("while True: pass")
    assert result.timed_out
    assert result.exit_code == 128 + signal.SIGXCPU


async def test_an_idle_program_runs_into_the_wall_clock():
    limits = SandboxLimits(wall_seconds=4.0)
    result = await run("import time; print('x', flush=True); time.sleep(300)", limits=limits)
    assert result.timed_out
    assert result.exit_code == 128 + 9
    assert result.stdout == b"x\n"
    assert result.seconds < 60


async def test_output_is_bounded():
    limits = SandboxLimits(max_output_bytes=1000)
    result = await run("import os\nwhile os.write(1, b'x' * 100): pass", limits=limits)
    assert result.truncated
    assert result.stdout == b"x" * 1000
    assert result.exit_code != 0


async def test_a_program_cannot_pretend_that_the_sandbox_failed():
    program = """
import os
for number in range(64):
    try:
        os.ftruncate(number, 0)
    except OSError:
        pass
os._exit(1)
"""
    assert (await run(program)).exit_code == 1


async def test_a_sandbox_that_does_not_start_is_an_error(monkeypatch):
    launcher = sandbox._find_launcher()
    broken = dataclasses.replace(launcher, program=("/nowhere/python",))
    monkeypatch.setattr(sandbox, "_find_launcher", lambda: broken)
    with pytest.raises(SandboxError, match=r"did not start: .*nowhere"):
        await run("print(1)")
    missing = dataclasses.replace(broken, command=("/nowhere/bwrap",))
    monkeypatch.setattr(sandbox, "_find_launcher", lambda: missing)
    with pytest.raises(SandboxError, match="did not start"):
        await run("print(1)")


async def test_a_sandbox_that_starts_too_slowly_is_an_error():
    with pytest.raises(SandboxError, match="no start within"):
        await run("print(1)", limits=SandboxLimits(wall_seconds=0.001))


async def test_a_cancelled_run_leaves_no_process():
    limits = SandboxLimits(cpu_seconds=77_002, wall_seconds=60.0)
    task = asyncio.create_task(run("import time; time.sleep(60)", limits=limits))
    await wait_until(lambda: find_processes("77002"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_until(lambda: not find_processes("77002"))


async def test_sandboxes_run_at_once():
    results = await asyncio.gather(*(run(f"print({number})") for number in range(8)))
    assert [int(result.stdout) for result in results] == list(range(8))
