"""Where actors run: a Ray of our own, started and ended with the run, or a cluster that is joined.

Nothing may outlive a run: the processes of a Ray that we started are noted before it is asked to
end, and what is left of them a moment later is killed.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psutil

LOCAL = "local"
"""Address that means: start Ray here, end it with the run."""
AUTO = "auto"
"""Address that means: join the cluster that this machine belongs to."""
CONNECT_TIMEOUT_SECONDS = 5.0
"""Time for a cluster's address to take a connection."""
HEALTH_TIMEOUT_SECONDS = 10.0
"""Time for what takes the connection to answer as Ray."""
TRACKER_SECONDS = 5.0
"""Time to unlink the semaphores of killed processes: on a busy machine more than a second, and a
tracker that is killed before leaves them until the machine starts again."""
OBJECT_STORE_BYTES = 128 << 20
"""Shared memory of a Ray that we start; groups of trajectories are a few hundred KiB."""

_log = logging.getLogger(__name__)


class Placement:
    """A connection to Ray; `end` undoes what `connect` did.

    Worked example:

        placement = connect("local")
        ...
        placement.end()
    """

    def __init__(self, *, is_ours: bool) -> None:
        """Remember whether Ray was started here; see `connect`."""
        self._is_ours = is_ours

    def end(self) -> None:
        """Leave the cluster, or end the Ray that we started with every process of it. Idempotent.

        Takes at most about five seconds.
        """
        import ray

        processes = descendants() if self._is_ours else []
        with _own_signals():
            ray.shutdown()
        kill_processes(processes, grace_seconds=1.0)


def connect(address: str) -> Placement:
    """Start or join Ray; takes some seconds, in which nothing else runs in this thread.

    Args:
        address: `local`, `auto`, or `host:port` of a cluster (`rollout.ray_address`).

    Raises:
        ValueError: the address is not one of these, or no cluster answers there; one line.
    """
    # Ray gives its workers the lowest priority by default, and an engine's children inherit it:
    # they would starve beside the learner.
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        raise RuntimeError("this process is connected to Ray already")
    _speech_to_log()
    quiet = {"log_to_driver": False, "logging_level": logging.WARNING}
    if address == LOCAL:
        with _own_signals():
            ray.init(
                LOCAL,  # without it Ray would join what RAY_ADDRESS or a file in /tmp names
                num_cpus=os.cpu_count(),
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                **quiet,
            )
        return Placement(is_ours=True)
    found = _find_cluster(address)
    with _own_signals():
        try:
            ray.init(address=found, **quiet)
        except (ConnectionError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ValueError(f"rollout.ray_address = {address!r}: {reason}") from error
    return Placement(is_ours=False)


def _speech_to_log() -> None:
    """Send to our log what Ray would print, of processes that die and of its own security.

    The error that ends a run says what a person has to know.
    """
    from ray._private import worker

    ray_logger = logging.getLogger("ray")
    ray_logger.handlers = [logging.NullHandler()]  # where nothing else listens, logging prints
    ray_logger.propagate = True

    def record(data: Mapping[str, Any], **options: object) -> None:
        del options
        _log.info("Ray: %s", " ".join(map(str, data["lines"])))

    worker.print_to_stdstream = record  # pyright: ignore[reportAttributeAccessIssue]  a seam of Ray's own


def _find_cluster(address: str) -> str:
    """Give `host:port` of a cluster that answers.

    Ray itself would try an address for minutes.
    """
    found = address
    if address == AUTO:
        from ray._private import services

        try:
            found = services.canonicalize_bootstrap_address_or_die(AUTO)
        except ConnectionError as error:
            raise ValueError(
                "rollout.ray_address = 'auto': this machine belongs to no Ray cluster; use "
                "'local', or `ray start --head` first"
            ) from error
    host, _, port = found.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(
            f"rollout.ray_address = {address!r} is none of 'local', 'auto' and 'host:port'"
        )
    advice = f"rollout.ray_address = {address!r}: no Ray cluster answers at {found}"
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ValueError(f"{advice} ({error})") from error
    fault = _health_fault(found, os.environ)
    if fault is not None and "InvalidAuthToken" in fault and "RAY_AUTH_MODE" not in os.environ:
        # Ray uses this machine's token for clusters that it finds, never for an address it is
        # given; a token that does not fit is refused like none.
        fault = _health_fault(found, os.environ | {"RAY_AUTH_MODE": "token"})
        if fault is None:
            from ray._private.authentication.authentication_token_setup import _enable_token_auth

            _enable_token_auth()
    if fault is not None:
        raise ValueError(f"{advice} ({fault})")
    return found


def _health_fault(found: str, environment: Mapping[str, str]) -> str | None:
    """Ask the cluster at `found` for its health; return one line on what is wrong, or None."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", found]
    try:
        health = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            timeout=HEALTH_TIMEOUT_SECONDS,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"nothing within {HEALTH_TIMEOUT_SECONDS:g} s"
    if health.returncode == 0:
        return None
    lines = [line.strip() for line in health.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else "unhealthy"


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """List the children of a process (this one by default), their children, and so on."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def kill_processes(processes: Sequence[psutil.Process], grace_seconds: float) -> None:
    """Wait for processes to end, and kill those that do not; ended ones are no error.

    What frees the semaphores of killed processes ends by itself after them, and is killed last;
    that of this process stays.
    """
    deadline = time.monotonic() + grace_seconds
    alive = list(processes)
    while alive and time.monotonic() < deadline:
        _, alive = psutil.wait_procs(alive, timeout=0.1)
    trackers = [process for process in alive if _is_tracker(process)]
    _kill([process for process in alive if process not in trackers])
    others = [process for process in trackers if not _is_child(process)]
    _, alive = psutil.wait_procs(others, timeout=TRACKER_SECONDS)
    _kill(alive)


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        _log.info("killing left-over process %d", process.pid)
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=2.0)


def _is_child(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.ppid() == os.getpid()
    return False


def _is_tracker(process: psutil.Process) -> bool:
    """Whether it is Python's, which unlinks the named semaphores of a family of processes."""
    with suppress(psutil.Error):
        return "multiprocessing.resource_tracker" in " ".join(process.cmdline())
    return False


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this process's signal handlers, which Ray replaces.

    Raises:
        KeyboardInterrupt: SIGTERM came while Ray's own handler was there, which would exit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except SystemExit as ended:
        raise KeyboardInterrupt from ended
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
