import logging
import os
import subprocess
import sys

import pytest

from rollout.engine_log import output_to, startup_cause


@pytest.fixture
def vllm_logger():
    logger = logging.getLogger("vllm")
    handlers, propagate = logger.handlers, logger.propagate
    yield logger
    for handler in logger.handlers:
        if handler not in handlers:
            handler.close()
    logger.handlers, logger.propagate = handlers, propagate


def test_output_of_processes_started_inside_goes_to_the_log(tmp_path, capfd, vllm_logger):
    log = tmp_path / "new" / "engine.log"
    with output_to(log):
        os.write(2, b"from here\n")
        child = "import sys; print('from a child'); sys.stderr.write('its error')"
        subprocess.run([sys.executable, "-c", child], check=True)
    os.write(2, b"after\n")
    vllm_logger.warning("a warning")
    assert capfd.readouterr().err == "after\n"
    text = log.read_text()
    assert all(part in text for part in ("from here", "from a child", "its error", "a warning"))


def test_the_cause_is_the_failing_process_s_exception_not_the_one_that_saw_it_fail(tmp_path):
    log = tmp_path / "engine.log"
    log.write_text(
        "ERROR [core.py:1510] Traceback (most recent call last):\n"
        "ERROR [core.py:1510] ValueError: checkpoint lacks ['lm_head.weight']\n"
        "RuntimeError: Engine core initialization failed. See root cause above. {}\n"
    )
    cause = startup_cause(log, RuntimeError("Engine core initialization failed.\nmore"))
    assert cause == "ValueError: checkpoint lacks ['lm_head.weight']"


def test_without_a_cause_in_the_log_what_was_seen_is_said(tmp_path):
    log = tmp_path / "engine.log"
    log.write_text("nothing\n")
    cause = startup_cause(log, TimeoutError("no answer in 240 s\nmore"))
    assert cause == "TimeoutError: no answer in 240 s"
