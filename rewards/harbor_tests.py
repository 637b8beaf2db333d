"""The `harbor_tests` grader: `tests/test.sh` of a Harbor task over the files that were handed in.

Takes the files and the task's tests, returns the reward that the script writes. It runs in a fresh
sandbox, which the policy never was in; but it runs the policy's files beside it, as Harbor does:
how hard it is to fool is the script's own business.
"""

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from envs.adapters.harbor import LIMITS, PRIVATE
from envs.episode import Episode
from envs.messages import JsonValue
from envs.sandboxes.protocol import Sandbox, SandboxError, WorkspaceError
from envs.sandboxes.registry import start_sandbox
from rewards.reward import Blame, Invalid, Outcome, Scored

MAX_SECONDS = 100.0
"""Of a script, whatever its task allows: a grader has to end before it is given up."""
_LOGS = f"{PRIVATE}/logs/verifier"


async def grade(episode: Episode) -> Outcome:
    """Grade an episode.

    Args:
        episode: Artifact `files`: path to base64. Reference `tests`: path below `tests/` to base64;
            `seconds`: the script's limit.

    Returns:
        What the script wrote to `reward.json` (`reward`, or a bare number) or `reward.txt`, other
        numbers of the JSON as parts; 0 where nothing was handed in or the script wrote nothing.
        Invalid where the sandbox failed, or the script wrote what is no reward in [0, 1].
    """
    files = episode.artifacts.get("files")
    if not isinstance(files, Mapping):
        return Scored(value=0.0)
    reference = episode.task.reference
    limits = replace(LIMITS, wall_seconds=min(cast("float", reference["seconds"]), MAX_SECONDS))
    try:
        sandbox = await start_sandbox(limits, owner="harbor tests")
        try:
            return await _run_tests(sandbox, files, cast("Mapping[str, str]", reference["tests"]))
        finally:
            await sandbox.stop()
    except SandboxError as error:
        return Invalid(reason="sandbox_failed", blame=Blame.INFRASTRUCTURE, detail=str(error))


async def _run_tests(
    sandbox: Sandbox, files: Mapping[str, JsonValue], tests: Mapping[str, str]
) -> Outcome:
    for path, content in files.items():
        if not path.startswith(f"{PRIVATE}/"):  # nobody hands in a reward
            await sandbox.write(path, base64.b64decode(str(content)))
    for path, content in tests.items():
        await sandbox.write(f"{PRIVATE}/tests/{path}", base64.b64decode(content))
    await sandbox.write(f"{_LOGS}/started", b"")  # makes the folder
    await sandbox.exec(["bash", f"{PRIVATE}/tests/test.sh"])
    written = await _read(sandbox, "reward.json") or await _read(sandbox, "reward.txt")
    if not written:
        return Scored(value=0.0, parts={"reward_written": 0.0})
    try:
        return read_reward(written)
    except ValueError as error:
        return Invalid(reason="no_reward", blame=Blame.GRADER, detail=str(error))


def read_reward(text: str) -> Scored:
    """Read a reward file.

    Worked example: `{"reward": 0.5, "speed": 2}` is Scored 0.5 with the part `speed`; `1` is 1.

    Raises:
        ValueError: it holds no reward in [0, 1].
    """
    value: object = json.loads(text)
    parts: dict[str, float] = {}
    if isinstance(value, dict):
        parts = {name: part for name, part in value.items() if name != "reward"}
        value = value.get("reward")
    numbers = [value, *parts.values()]
    if not all(isinstance(each, int | float) and math.isfinite(each) for each in numbers):
        raise ValueError(f"no reward: {text[:80]!r}")
    reward = float(cast("float", value))
    if not 0.0 <= reward <= 1.0:
        raise ValueError(f"the reward {reward:g} is not in [0, 1]")
    return Scored(value=reward, parts={name: float(part) for name, part in parts.items()})


async def _read(sandbox: Sandbox, name: str) -> str:
    try:
        return (await sandbox.read(f"{_LOGS}/{name}")).decode("utf-8", "replace").strip()
    except WorkspaceError:
        return ""
