"""The engine's log file: what vLLM and its processes write, and the line in it that says why."""

import contextlib
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

CAUSE = re.compile(r"\b[A-Za-z_.]*(?:Error|Exception): .+")
"""How Python prints the exception that ended a traceback."""
SYMPTOM = "See root cause above"
"""In the message of the process that only saw the other one fail."""


@contextlib.contextmanager
def output_to(log: Path) -> Iterator[None]:
    """Send this process's output to `log`; an engine started inside keeps writing there.

    vLLM's processes inherit the two descriptors; nothing else reaches what they print. Afterwards
    vLLM's logger in this process writes to the file as well.

    Args:
        log: Appended to; its folder is made if missing.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    kept = [os.dup(1), os.dup(2)]
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        for target, descriptor in zip((1, 2), kept, strict=True):
            os.dup2(descriptor, target)
            os.close(descriptor)
        logger = logging.getLogger("vllm")
        logger.handlers = [logging.FileHandler(log)]
        logger.propagate = False


def startup_cause(log: Path, error: Exception) -> str:
    """Return the one line that says why an engine did not start.

    Args:
        log: Holds the tracebacks of vLLM's processes; the last exception of the first process that
            failed is the cause.
        error: What the starting process saw; its first line where the log says nothing.
    """
    lines = log.read_text(errors="replace").splitlines()
    causes = [match[0] for line in lines if (match := CAUSE.search(line)) and SYMPTOM not in line]
    return causes[-1] if causes else f"{type(error).__name__}: {str(error).splitlines()[0]}"
