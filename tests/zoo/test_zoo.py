"""The zoo: every broken environment is found by the check meant for it, and no sound one is."""

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from envs.config import EnvironmentConfig
from envs.registry import load_environment
from envs.soundness import CheckLimits
from rewards.check import prove
from rollout.check import token_checks
from rollout.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
sys.path.append(str(Path(__file__).parent))  # graders are named by dotted paths

from broken_graders import BROKEN as BROKEN_GRADERS  # noqa: E402
from broken_worlds import BROKEN as BROKEN_WORLDS, HELD  # noqa: E402
from sound_worlds import SOUND  # noqa: E402

BROKEN = {**BROKEN_WORLDS, **BROKEN_GRADERS}
LIMITS = CheckLimits(
    num_tasks=2,
    reset_seconds=0.5,
    cancel_seconds=0.5,
    grader_seconds=0.5,
    expert_attempts=2,
    leak_episodes=12,
)
CHECKS = token_checks(Tokenizer.load(ROOT / "configs" / "quickstart-checkpoint"))


@pytest.fixture(autouse=True)
def what_leaks_is_ended(monkeypatch, tmp_path):
    """Files go to a folder of the test's; processes, threads and handles end with it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    for held in HELD:
        if isinstance(held, subprocess.Popen):
            held.kill()
            held.wait()
        elif isinstance(held, threading.Event):
            held.set()
        elif isinstance(held, int):
            os.close(held)
    HELD.clear()


async def prove_world(spec):
    section = EnvironmentConfig(tool_timeout_seconds=1.0)
    return await prove(spec, section, LIMITS, CHECKS)


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_environment_is_found_by_its_check_alone(name):
    spec, check = BROKEN[name]
    proof = await prove_world(spec)
    assert {failed.name: failed.details for failed in proof.failures}.keys() == {check}
    assert proof.badge.startswith(f"unsound: {check}; ")


@pytest.mark.parametrize("name", SOUND)
async def test_a_sound_environment_is_not_accused(name):
    proof = await prove_world(SOUND[name])
    assert [(failed.name, failed.details) for failed in proof.failures] == []
    assert proof.badge.startswith("sound: ")


@pytest.mark.parametrize("name", ["code_tests", "retrieval"])
async def test_our_environments_are_sound(name):
    proof = await prove(load_environment(name), None, CheckLimits(num_tasks=2), CHECKS)
    assert [(failed.name, failed.details) for failed in proof.failures] == []


def test_each_check_has_an_environment_that_only_it_finds():
    from envs.check import ENVIRONMENT_CHECKS
    from rewards.check import CHECKS as REWARD_CHECKS

    names = {check.name for check in (*ENVIRONMENT_CHECKS, *REWARD_CHECKS, *CHECKS)}
    lossless = {"tokens"}  # no text breaks a byte-level tokenizer: tests/rollout/test_check.py
    assert {check for _, check in BROKEN.values()} == names - lossless
    assert len(BROKEN) >= 20
