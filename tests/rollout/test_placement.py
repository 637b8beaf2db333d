import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from rollout.placement import _own_signals, _speech_to_log, connect, descendants, kill_processes


@pytest.fixture
def silent_port():
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_an_address_where_nothing_listens_is_one_clear_line_at_once():
    port = free_port()
    started = time.monotonic()
    with pytest.raises(ValueError, match=rf"no Ray cluster answers at 127\.0\.0\.1:{port} \(.*\)$"):
        connect(f"127.0.0.1:{port}")
    assert time.monotonic() - started < 15


@pytest.mark.slow
def test_an_address_that_says_nothing_does_not_hang(silent_port):
    started = time.monotonic()
    with pytest.raises(ValueError, match=r"^rollout\.ray_address = .* no Ray cluster answers"):
        connect(f"127.0.0.1:{silent_port}")
    assert time.monotonic() - started < 25


@pytest.mark.parametrize("address", ["locl", "cluster:port", ":6379", "127.0.0.1:99999999"])
def test_what_is_no_address_is_one_clear_line(address):
    with pytest.raises(ValueError, match=r"^rollout\.ray_address = '.*' *[^\n]*$"):
        connect(address)


def test_processes_that_do_not_end_are_killed_with_their_children():
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE)
    deadline = time.monotonic() + 10
    while not (children := descendants(parent.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert children
    kill_processes([psutil.Process(parent.pid), *children], grace_seconds=0.1)
    assert parent.stdin is not None
    parent.stdin.close()
    parent.wait(5)
    assert not any(psutil.pid_exists(process.pid) for process in (parent, *children))


def test_sigterm_while_ray_starts_is_an_interruption():
    def start():
        with _own_signals():
            signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))  # as Ray does
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        start()
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_descendants_of_a_process_that_is_gone_are_none():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert descendants(gone.pid) == []


def test_the_semaphores_of_killed_processes_are_freed():
    script = (
        "import multiprocessing\n"
        "lock = multiprocessing.get_context('spawn').Lock()\n"
        "print(lock._semlock.name, flush=True)\n"
        "input()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    file = Path("/dev/shm") / f"sem.{parent.stdout.readline().strip().removeprefix('/')}"
    assert file.exists()
    family = [psutil.Process(parent.pid), *descendants(parent.pid)]
    kill_processes(family, grace_seconds=0.0)
    parent.stdin.close()
    parent.stdout.close()
    parent.wait(5)
    assert not file.exists()
    assert not any(process.is_running() for process in family)


def test_what_ray_says_of_dead_processes_is_logged_and_not_printed(caplog, capfd, monkeypatch):
    from ray._private import worker

    monkeypatch.setattr(worker, "print_to_stdstream", worker.print_to_stdstream)
    caplog.set_level(logging.INFO)
    _speech_to_log()
    worker.print_to_stdstream({"lines": ["a worker died"], "pid": "raylet"}, ignore_prefix=False)
    assert "Ray: a worker died" in caplog.text
    assert capfd.readouterr() == ("", "")


def test_what_ray_says_of_its_security_is_logged_and_not_printed():
    code = (
        "import logging, sys\n"
        "import ray\n"
        "from ray._private.authentication import authentication_token_setup as setup\n"
        "from rollout.placement import _speech_to_log\n"
        "_speech_to_log()\n"
        "setup._warn_token_auth_enabled()\n"  # where nobody listens: verbs without a run folder
        "logging.getLogger().addHandler(logging.FileHandler(sys.argv[1]))\n"
        "setup._warn_token_auth_disabled()\n"
    )
    with tempfile.NamedTemporaryFile("r") as log:
        done = run_in_a_process_of_its_own(code, log.name)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert "Token authentication is disabled" in log.read()


def run_in_a_process_of_its_own(code, *arguments, **variables):
    """Ray connects a process once: each test of `connect` has its own."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.ray
@pytest.mark.slow
def test_local_starts_a_ray_of_its_own_whatever_the_environment_names():
    code = (
        "from rollout.placement import connect\n"
        "placement = connect('local')\n"
        "import ray\n"
        "assert ray.is_initialized()\n"
        "placement.end()\n"
    )
    done = run_in_a_process_of_its_own(code, RAY_ADDRESS=f"127.0.0.1:{free_port()}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def cluster():
    """A Ray cluster of this machine that a test joins; ended afterwards."""
    port = free_port()
    command = [sys.executable, "-m", "ray.scripts.scripts"]
    options = ["--head", f"--port={port}", "--num-cpus=1", "--include-dashboard=false"]
    head = subprocess.Popen(
        [*command, "start", *options, "--block"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield f"127.0.0.1:{port}"
    kill_processes([psutil.Process(head.pid), *descendants(head.pid)], grace_seconds=5)
    head.wait(10)


@pytest.mark.ray
@pytest.mark.slow
def test_a_cluster_that_was_joined_is_left_running(cluster):
    code = (
        "import sys, time\n"
        "from rollout.placement import connect\n"
        "for attempt in range(60):\n"
        "    try:\n"
        "        placement = connect(sys.argv[1])\n"
        "        break\n"
        "    except ValueError:\n"  # it is coming up
        "        time.sleep(1)\n"
        "import ray\n"
        "placement.end()\n"
        "assert not ray.is_initialized()\n"
    )
    joined = f"import sys; sys.argv = ['', '{cluster}']\n{code}"
    for _ in range(2):  # the second time proves that the first left it alive
        done = run_in_a_process_of_its_own(joined)
        assert done.returncode == 0, done.stderr
