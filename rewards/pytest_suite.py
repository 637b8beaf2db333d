"""The `pytest_suite` grader: does the submission pass a pytest suite that it never saw?

Takes an episode whose artifacts are files, returns 1 where every hidden test passes and 0
otherwise. Use `hidden_tests` where the submission is one function of plain values: there no
submitted line shares a process with a test. A pytest suite imports what it tests, so here it does,
and can patch, forge and read whatever is in that process. Nothing in it is therefore believed:

- the suite is rebuilt for every run with decoys, under a fresh secret (`rewards/decoys.py`); the
  report must name every check and every decoy exactly once, and only the checks as passed;
- the suite and pytest itself are mounted read-only from outside the sandbox;
- the key to the names never enters the sandbox; the exit code and printed text mean nothing;
- the sandbox is fresh; only the files of the submission cross into it, and of them neither
  `conftest.py`, nor `pytest.ini`, nor a plugin is read, nor can one stand in for a module of
  pytest or of the standard library.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from random import SystemRandom

from envs.episode import Episode
from envs.messages import JsonValue
from envs.sandbox import SandboxError, SandboxLimits, run_python
from rewards.decoys import DecoyedSuite, add_decoys
from rewards.pytest_bundle import build_pytest_bundle
from rewards.reward import Blame, Invalid, Outcome, Scored

LIMITS = SandboxLimits(wall_seconds=30.0, cpu_seconds=10, memory_mib=512, max_output_bytes=2 << 20)
"""Output and each file of a submission."""
MAX_SUBMISSION_BYTES = 1 << 20

_WORKER = """
import os, sys
home = os.getcwd()
channel = os.dup(1)
os.dup2(2, 1)
sys.dont_write_bytecode = True
given = sys.argv[1]
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
for path, text in eval(sys.stdin.read()):
    target = os.path.join(home + "/submission", path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "w") as file:
        file.write(text)
sys.path.append(given + "/pytest.zip")
import pytest
sys.path.append(home + "/submission")
outcomes = {}

class Recorder:
    def pytest_runtest_logreport(self, report):
        name = report.nodeid.rpartition("::")[2]
        outcomes[name] = outcomes.get(name, True) and report.passed

pytest.main(
    [given + "/test_suite.py", "-c", "/dev/null", "--rootdir=" + given,
     "--noconftest", "--import-mode=importlib", "--assert=plain", "--capture=no",
     "-p", "no:cacheprovider", "--no-header", "--tb=no", "-p", "no:faulthandler"],
    plugins=[Recorder()],
)
lines = [name + (" 1" if ok else " 0") for name, ok in outcomes.items()]
os.write(channel, "\\n".join(lines).encode())
os._exit(0)
"""


async def grade(episode: Episode) -> Outcome:
    """Grade an episode.

    Args:
        episode: Artifact `files`: relative path to text of each submitted file. Reference `tests`:
            text of a pytest module; `decoys` (may be missing): see `add_decoys`.

    Returns:
        Scored 1 or 0; its part `checks_passed` is the share of the assertions that are claimed to
        hold. Invalid where the sandbox failed, or the suite cannot be used.
    """
    files = _read_files(episode.artifacts.get("files"))
    if not files:
        return Scored(value=0.0, parts={"checks_passed": 0.0})
    reference = episode.task.reference
    try:
        suite = add_decoys(
            str(reference["tests"]), str(reference.get("decoys", "")), SystemRandom()
        )
        claims = await run_suite(suite, files)
    except (ValueError, ModuleNotFoundError) as error:
        return Invalid(reason="suite_unusable", blame=Blame.GRADER, detail=str(error))
    except SandboxError as error:
        return Invalid(reason="sandbox_failed", blame=Blame.INFRASTRUCTURE, detail=str(error))
    return Scored(
        value=float(suite.is_matched_by(claims)),
        parts={"checks_passed": suite.passed_share(claims)},
    )


async def run_suite(
    suite: DecoyedSuite, files: Mapping[str, str], limits: SandboxLimits = LIMITS
) -> Sequence[tuple[str, bool]]:
    """Run a suite over some files in a fresh sandbox.

    Returns:
        What the process claims: names, and whether they passed. Empty where it claims nothing
        readable or ran out of time.

    Raises:
        SandboxError: the sandbox could not be set up, or pytest does not run in it.
        ModuleNotFoundError: pytest is not installed.
    """
    if not _proof.pytest_runs:
        _proof.pytest_runs = await _run(_PROOF_SUITE, {}, limits) == (("test_proof", True),)
        if not _proof.pytest_runs:
            raise SandboxError("pytest does not run in the sandbox")
    return await _run(suite.source, files, limits)


@dataclass
class _Proof:
    """Has this process seen pytest run in a sandbox, with no submission?

    Without it, a pytest that cannot start would look like a submission that fails. A sign from the
    graded run itself would not do: the submission could remove it, and be no score instead of 0.
    """

    pytest_runs: bool = False


_proof = _Proof()
_PROOF_SUITE = "def test_proof(): pass"


async def _run(
    suite: str, files: Mapping[str, str], limits: SandboxLimits
) -> tuple[tuple[str, bool], ...]:
    inputs = {"pytest.zip": build_pytest_bundle(), "test_suite.py": suite.encode()}
    result = await run_python(_WORKER, stdin=repr([*files.items()]), limits=limits, inputs=inputs)
    if result.timed_out:
        return ()
    return _parse(result.stdout)


def _parse(stdout: bytes) -> tuple[tuple[str, bool], ...]:
    """Read the lines `<name> 0` and `<name> 1`; empty where there is anything else."""
    try:
        pairs = [line.split(" ") for line in stdout.decode("ascii").split("\n")]
        return tuple((name, {"0": False, "1": True}[flag]) for name, flag in pairs)
    except (ValueError, KeyError):
        return ()


def _read_files(artifact: JsonValue) -> dict[str, str]:
    """Read the submitted files; none where the artifact is no set of small files below a folder."""
    if not isinstance(artifact, Mapping):
        return {}
    files = {path: text for path, text in artifact.items() if isinstance(text, str)}
    if len(files) != len(artifact) or not all(map(_is_inside, files)):
        return {}
    size = sum(len(text) for text in files.values())
    return files if size <= MAX_SUBMISSION_BYTES else {}


def _is_inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and ".." not in parts and not path.startswith("/") and "\0" not in path
