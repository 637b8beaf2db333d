"""A sandbox that lives: programs, files, snapshots, and the two kinds of failure."""

import asyncio
import contextlib
import os
import shlex
import signal
import sys
import time
from pathlib import Path

import pytest

from envs.sandboxes import bubblewrap, docker, registry, sandlock
from envs.sandboxes.docker import Docker
from envs.sandboxes.lease import list_leases, open_lease
from envs.sandboxes.protocol import WORKSPACE, SandboxError, SandboxLimits, WorkspaceError
from envs.sandboxes.session import Confinement, start_guest

LIMITS = SandboxLimits(wall_seconds=30.0, cpu_seconds=5)
BACKENDS = {"bubblewrap": bubblewrap.BACKEND, "sandlock": sandlock.BACKEND}


@pytest.fixture(params=BACKENDS)
def backend(request):
    return BACKENDS[request.param]


@pytest.fixture
async def sandbox(backend):
    sandbox = await backend.start(LIMITS, open_lease("test"))
    yield sandbox
    await sandbox.stop()


async def test_a_program_reads_prints_and_ends(sandbox):
    code = "import sys; print(sys.stdin.read().upper()); print('e', file=sys.stderr); sys.exit(7)"
    result = await sandbox.exec(["python3", "-c", code], stdin="hé".encode())
    assert (result.stdout, result.stderr, result.exit_code) == ("HÉ\n".encode(), b"e\n", 7)
    assert not result.timed_out
    assert not result.truncated
    assert 0 < result.seconds < 30


async def test_how_a_program_ended_is_told(sandbox):
    assert (await sandbox.exec(["nowhere"])).exit_code == 127
    assert b"nowhere: No such file" in (await sandbox.exec(["nowhere"])).stderr
    assert (await sandbox.exec(["sh", "-c", "kill -9 $$"])).exit_code == 128 + signal.SIGKILL
    slow = await sandbox.exec(["sleep", "60"], wall_seconds=0.3)
    assert slow.timed_out
    assert slow.exit_code == 128 + signal.SIGKILL
    with pytest.raises(ValueError, match="argv is empty"):
        await sandbox.exec([])


async def test_a_busy_program_runs_out_of_cpu_time(backend):
    limits = SandboxLimits(wall_seconds=60.0, cpu_seconds=1)
    sandbox = await backend.start(limits, open_lease("test"))
    result = await sandbox.exec(["sh", "-c", "while :; do :; done"])
    assert result.timed_out
    assert result.seconds < 50
    await sandbox.stop()


async def test_a_program_may_close_its_output_and_go_on(sandbox):
    result = await sandbox.exec(["sh", "-c", "echo a; exec >&- 2>&-; sleep 0.3; exit 3"])
    assert (result.stdout, result.exit_code) == (b"a\n", 3)


async def test_files_go_in_and_out(sandbox):
    content = bytes(range(256)) * 400
    await sandbox.write("deep/er/data.bin", content)
    assert await sandbox.read("deep/er/data.bin") == content
    assert await sandbox.read(f"{WORKSPACE}/deep/er/data.bin") == content
    assert (await sandbox.exec(["wc", "-c", "deep/er/data.bin"])).stdout.split()[0] == b"102400"
    await sandbox.exec(["sh", "-c", "echo two > new.txt"])
    assert await sandbox.read("./new.txt") == b"two\n"
    await sandbox.write("deep/er/data.bin", b"short")
    assert await sandbox.read("deep/er/data.bin") == b"short"
    await sandbox.write("empty", b"")
    assert await sandbox.read("empty") == b""


async def test_odd_names_and_odd_bytes_cross(sandbox):
    name = "a 'b'\n\"c\" é \udcff"
    await sandbox.write(name, b"\xff\x00")
    assert await sandbox.read(name) == b"\xff\x00"
    result = await sandbox.exec(["printf", "%s", name])
    assert result.stdout == os.fsencode(name)


async def test_what_is_missing_is_an_answer_and_not_a_failure(sandbox):
    with pytest.raises(WorkspaceError, match=r"^nothing: No such file"):
        await sandbox.read("nothing")
    await sandbox.exec(["sh", "-c", "echo x > shut; chmod 0 shut"])
    with pytest.raises(WorkspaceError, match="Permission denied"):
        await sandbox.read("shut")
    assert (await sandbox.exec(["true"])).exit_code == 0


async def test_a_snapshot_brings_back_all_files(sandbox):
    make = "mkdir -p a/b; echo 1 > a/b/f; chmod 755 a/b/f; ln -s b/f a/link; mkfifo a/pipe; mkdir e"
    await sandbox.exec(["sh", "-c", make])
    before = await sandbox.snapshot()
    spoil = "echo 2 > a/b/f; touch a/new; rmdir e; mkdir -p x/y; touch x/y/z; chmod 0 x"
    await sandbox.exec(["sh", "-c", spoil])
    await sandbox.restore(before)
    listing = await sandbox.exec(["sh", "-c", "find . | sort; readlink a/link; stat -c %a a/b/f"])
    assert listing.stdout.decode().split() == [
        *(".", "./a", "./a/b", "./a/b/f", "./a/link", "./e"),
        *("b/f", "755"),
    ]
    assert await sandbox.read("a/b/f") == b"1\n"
    assert await sandbox.snapshot() == before


async def test_a_snapshot_moves_to_another_sandbox(sandbox):
    await sandbox.write("answer", b"42")
    for backend in BACKENDS.values():
        other = await backend.start(LIMITS, open_lease("other"))
        await other.restore(await sandbox.snapshot())
        assert await other.read("answer") == b"42"
        await other.stop()


async def test_what_is_no_snapshot_changes_nothing(sandbox):
    await sandbox.write("answer", b"42")
    with pytest.raises(WorkspaceError, match="cannot unpack"):
        await sandbox.restore(b"nonsense" * 1000)
    assert await sandbox.read("answer") == b"42"
    await sandbox.exec(["sh", "-c", "mkdir shut; touch shut/x; chmod 0 shut"])
    with pytest.raises(WorkspaceError, match="Permission denied"):
        await sandbox.snapshot()


async def test_operations_wait_for_each_other(sandbox):
    async def add(number):
        return await sandbox.exec(["sh", "-c", f"echo {number}"])

    results = await asyncio.gather(*(add(number) for number in range(6)))
    assert [int(result.stdout) for result in results] == list(range(6))


async def test_a_stopped_sandbox_says_so(sandbox):
    await sandbox.stop()
    await sandbox.stop()
    with pytest.raises(SandboxError, match="cannot be used: it is stopped"):
        await sandbox.exec(["true"])


async def test_a_cancelled_operation_stops_the_sandbox(sandbox):
    task = asyncio.create_task(sandbox.exec(["sleep", "60"]))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(SandboxError, match="stopped"):
        await sandbox.read("x")
    assert sandbox.lease.id not in [lease.id for lease in list_leases()]


async def test_a_sandbox_that_dies_is_infrastructure(sandbox):
    task = asyncio.create_task(sandbox.exec(["sleep", "60"]))
    await asyncio.sleep(0.1)
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        pid = int(path.parent.name)
        with contextlib.suppress(OSError):  # processes come and go
            is_guest = path.read_bytes().split(b"\0")[0].endswith(b"/python3")
            if is_guest and is_below(pid, sandbox.lease.sandbox_process.pid):
                os.kill(pid, signal.SIGKILL)
    with pytest.raises(SandboxError, match="the sandbox ended"):
        await task
    assert not Path(sandbox.lease.folder).exists()


def is_below(pid, ancestor):
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        pid = int(text.rpartition(")")[2].split()[1])
    return False


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("echo no namespaces here >&2; exit 1", "no namespaces here"),
        ("exit 1", "the sandbox ended"),
        ("printf '\\377\\377\\377\\377garbage'; cat", "something else"),
        ("printf '\\000\\000\\000\\002{}'; cat", "sizes"),
        ("printf '\\000\\000\\000\\002xx'; cat", "Expecting value"),
    ],
)
async def test_a_guest_that_does_not_report_is_an_error_that_leaves_nothing(script, complaint):
    lease = open_lease("broken")
    confinement = Confinement(command=["/bin/sh", "-c", script], workspace="/tmp")
    with pytest.raises(SandboxError, match=f"did not start: .*{complaint}"):
        await start_guest(LIMITS, lease, confinement)
    assert not Path(lease.folder).exists()
    with pytest.raises(SandboxError, match=r"did not start: .*nowhere"):
        await start_guest(LIMITS, open_lease("broken"), Confinement(command=["/nowhere/bwrap"]))


async def test_where_nothing_confines_nothing_runs(monkeypatch):
    monkeypatch.setattr(registry, "_CHOICES", {})
    monkeypatch.setattr(bubblewrap, "find_launcher", raise_error("no user namespaces"))
    monkeypatch.setattr(sandlock, "_find_sandlock", raise_error("sandlock is missing"))
    with pytest.raises(SandboxError, match=r"bubblewrap: no user namesp.*; sandlock: .*missing"):
        await registry.start_sandbox(owner="test")
    assert list_leases_of("test") == []


async def test_inputs_can_be_read_and_by_no_means_changed(backend):
    inputs = {"test_suite.py": b"assert False", "data.bin": bytes(range(256))}
    sandbox = await backend.start(LIMITS, open_lease("test"), inputs)
    try:
        program = f"""
import ctypes, os
folder = {sandbox.inputs!r}
path = folder + "/test_suite.py"
mount = ctypes.CDLL(None).umount2
def change_mode(): os.chmod(path, 0o666); os.chmod(folder, 0o777)
def write(): open(path, "w").write("x")
def write_inside(): open(path, "r+").write("x")
def truncate(): os.truncate(path, 0)
def remove(): os.unlink(path)
def move_over(): open("other", "w").close(); os.replace("other", path)
def move_away(): os.rename(path, "mine")
def move_the_folder(): os.rename(folder, folder + "2")
def add(): open(folder + "/conftest.py", "w")
def link_and_write(): os.link(path, "link"); open("link", "w").write("x")
def unmount(): assert mount(path.encode(), 2) == 0
print(open(path).read(), len(open(folder + "/data.bin", "rb").read()))
try: change_mode()
except OSError: pass
for way in (write, write_inside, truncate, remove, move_over, move_away, move_the_folder, add,
            link_and_write, unmount):
    try: way(); print(way.__name__, "did it")
    except (OSError, AssertionError): pass
print(sorted(os.listdir(folder)), open(path).read())
"""
        result = await sandbox.exec(["python3", "-c", program])
    finally:
        await sandbox.stop()
    told = "assert False 256\n['data.bin', 'test_suite.py'] assert False\n"
    assert result.stdout.decode() == told, result.stderr
    assert not Path(sandbox.lease.folder).exists()


async def test_where_namespaces_are_missing_sandlock_is_taken(monkeypatch):
    from envs.sandbox import run_python

    monkeypatch.setattr(registry, "_CHOICES", {})
    monkeypatch.setattr(bubblewrap, "find_launcher", raise_error("no user namespaces"))
    assert (await registry.choose_backend()).name == "sandlock"
    result = await run_python("import sys; print(6 * int(sys.stdin.read()))", stdin="7")
    assert result.stdout == b"42\n"
    show = "import os, sys; print(open(sys.argv[1] + '/a').read())"
    assert (await run_python(show, inputs={"a": b"given"})).stdout == b"given\n"
    assert list_leases_of("one program") == []


def raise_error(text):
    def find():
        raise SandboxError(text)

    return find


def list_leases_of(owner):
    return [lease for lease in list_leases() if lease.owner == owner]


async def test_bubblewrap_comes_first():
    assert (await registry.choose_backend()).name == "bubblewrap"


def test_a_backend_is_found_by_name_or_path():
    assert registry.load_backend("envs.sandboxes.docker:BACKEND") is docker.BACKEND
    with pytest.raises(ValueError, match="no sandbox 'unsafe_local'"):
        registry.load_backend("unsafe_local")
    with pytest.raises(ValueError, match="is a type, no backend"):
        registry.load_backend("envs.sandboxes.session:Confinement")


async def test_a_container_is_confined_by_its_options(tmp_path, monkeypatch):
    log = tmp_path / "log"
    workspace = tmp_path / "work"
    workspace.mkdir()
    # Stands in for the engine: writes its arguments down, and runs the guest under bubblewrap.
    launcher = bubblewrap.find_launcher()
    confine = shlex.join([*launcher.command, *launcher.options, "--as-pid-1"])
    fake = tmp_path / "docker"
    fake.write_text(
        f"#!{sys.executable} -IS\n"
        "import json, os, sys\n"
        f"open({str(log)!r}, 'a').write(json.dumps(sys.argv[1:]) + '\\n')\n"
        "if sys.argv[1] == 'run':\n"
        f"    confine = {[*shlex.split(confine), '--tmpfs', '/tmp', '--tmpfs', '/workspace']!r}\n"
        "    guest = sys.argv[sys.argv.index('image:1') + 1:]\n"
        "    os.execvp(confine[0], [*confine, *guest])\n"
    )
    fake.chmod(0o755)
    if launcher.open_files:
        pytest.skip("bubblewrap is installed where only root can read")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    sandbox = await Docker(image="image:1").start(LIMITS, open_lease("test"))
    assert (await sandbox.exec(["python3", "-c", "print(6 * 7)"])).stdout == b"42\n"
    await sandbox.stop()
    lines = log.read_text().splitlines()
    run = lines[0]
    for option in ('"--network", "none"', '"--read-only"', '"--cap-drop", "ALL"', '"--rm"'):
        assert option in run
    assert f'["rm", "--force", "limosa-{sandbox.lease.id}"]' in lines


async def test_a_real_container_runs_a_program():
    problem = await docker.BACKEND.find_problem()
    if problem is not None:
        pytest.skip(f"no docker: {problem}")
    sandbox = await docker.BACKEND.start(LIMITS, open_lease("test"), {"number": b"7"})
    await sandbox.write("a.py", b"print(6 * int(open('/inputs/number').read()))")
    assert (await sandbox.exec(["python3", "a.py"])).stdout == b"42\n"
    await sandbox.stop()


async def test_a_machine_without_docker_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert await docker.BACKEND.find_problem() == "docker is not installed"
    with pytest.raises(SandboxError, match="docker is not installed"):
        await docker.BACKEND.start(LIMITS, open_lease("nobody"))
    assert list_leases_of("nobody") == []


async def test_programs_of_a_living_sandbox_start_in_milliseconds(sandbox):
    times = []
    for _ in range(20):
        started = time.perf_counter()
        await sandbox.exec(["true"])
        times.append(time.perf_counter() - started)
    assert min(times) < 0.05
