"""The outside of an isolated adapter: a worker process, asked in JSON lines.

Replies are matched by number and may come in any order; a thread reads them, so that any event loop
may ask. A worker that died fails all that wait, and is started again by the next question.
"""

import asyncio
import atexit
import itertools
import json
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import IO, Any

from envs.messages import JsonValue

ASK_SECONDS = 120.0
"""A question that no episode waits for: importing a large package takes a while."""


class WorkerError(RuntimeError):
    """What the foreign environment raised, in one line."""


class Worker:
    """A process that answers, started when it is first asked."""

    def __init__(self, command: Sequence[str]) -> None:
        """Remember how to start it."""
        self._command = list(command)
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        """Questions to the process that runs now."""
        self._process: subprocess.Popen[str] | None = None
        atexit.register(self.stop)

    def ask(self, method: str, **parameters: JsonValue) -> Any:  # noqa: ANN401
        """Ask, and wait for the reply.

        Raises:
            WorkerError: the foreign environment raised.
            ConnectionError: the worker ended; one line, with the last that it wrote.
        """
        return self._send(method, parameters).result(ASK_SECONDS)

    async def ask_async(self, method: str, **parameters: JsonValue) -> Any:  # noqa: ANN401
        """Ask, and await the reply; raises as `ask` does."""
        return await asyncio.wrap_future(self._send(method, parameters))

    def stop(self) -> None:
        """End the process. Idempotent."""
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
        self._close_input()

    def _send(self, method: str, parameters: dict[str, JsonValue]) -> Future[Any]:
        answer: Future[Any] = Future()
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._close_input()
                self._start()
            assert self._process is not None
            assert self._process.stdin is not None
            number = next(self._numbers)
            self._waiting[number] = answer
            line = json.dumps({"id": number, "method": method, **parameters})
            with suppress(BrokenPipeError):  # the reader finds the end, and fails what waits
                self._process.stdin.write(line + "\n")
                self._process.stdin.flush()
        return answer

    def _start(self) -> None:
        log = tempfile.TemporaryFile()  # noqa: SIM115 (the reader closes it)
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            encoding="utf-8",
        )
        self._waiting = {}  # what waits for the process before fails when its reader finds the end
        arguments = (self._process, self._waiting, log)
        threading.Thread(target=self._read, args=arguments, daemon=True).start()

    def _close_input(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def _read(
        self, process: "subprocess.Popen[str]", waiting: dict[int, Future[Any]], log: IO[bytes]
    ) -> None:
        """Hand out the replies of a process until there are no more."""
        assert process.stdout is not None
        for line in process.stdout:
            reply = json.loads(line)
            answer = waiting.pop(reply["id"])
            if not answer.set_running_or_notify_cancel():
                continue  # nobody waits any more
            if "error" in reply:
                answer.set_exception(WorkerError(reply["error"]))
            else:
                answer.set_result(reply["result"])
        process.wait()
        with log, process.stdout:
            log.seek(0)
            said = log.read().decode(errors="replace").strip().splitlines()[-1:]
        error = ConnectionError(f"the worker ended: {' '.join(said)[:300]}")
        with self._lock:  # from here on it is not asked
            lost = [*waiting.values()]
        for answer in lost:
            if answer.set_running_or_notify_cancel():
                answer.set_exception(error)
