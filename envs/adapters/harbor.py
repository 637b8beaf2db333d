"""Task folders of Harbor's format, read without Harbor and played in our own sandbox.

    [environments.terminal]
    use = "envs.adapters.harbor:SPEC"
    options = { folder = "tasks" }

A folder per task: `instruction.md`, `task.toml`, `environment/`, `tests/test.sh`, `solution/`. What
the format puts at absolute paths (the image's work folder, `/tests`, `/logs`, `/solution`) has its
place below the sandbox's workspace here, and the texts of a task are rewritten to say so.

No image is built: programs are those of this machine, without network. A Dockerfile may say
`FROM`, `WORKDIR` and `COPY`; a task that needs more is refused by name, not half run.
"""

import base64
import contextlib
import random
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import cast

from envs.environment import EnvironmentSpec, Expert, Split, ToolError
from envs.messages import JsonValue, Message, Role, ToolCall
from envs.sandboxes.protocol import WORKSPACE, SandboxLimits, WorkspaceError
from envs.sandboxes.registry import start_sandbox
from envs.task import Task
from envs.task_sets import split_of
from envs.workspace import MAX_FILE_CHARACTERS, MAX_FILES, Workspace

PRIVATE = ".harbor"
"""Folder of the workspace that stands for `/tests`, `/logs` and `/solution`."""
ADDRESS = "envs.adapters.harbor:SPEC"
GRADER = "rewards.harbor_tests:grade"
LIMITS = SandboxLimits(wall_seconds=30.0, cpu_seconds=20, memory_mib=1024, max_processes=64)
MAX_OUTPUT_CHARACTERS = 1500
"""What `run` shows of what a command printed: its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Image:
    """What a Dockerfile asks for."""

    work_folder: str
    copies: tuple[tuple[str, str], ...]
    """Sources in `environment/`, and where they go."""


class _Mover:
    """Rewrites the absolute paths of the format to places in the workspace."""

    def __init__(self, work_folder: str) -> None:
        places = {name: f"{WORKSPACE}/{PRIVATE}{name}" for name in ("/tests", "/logs", "/solution")}
        self._places = {**places, work_folder: WORKSPACE}
        names = "|".join(re.escape(name) for name in sorted(self._places, key=len, reverse=True))
        self._pattern = re.compile(rf"(?<![\w.~/-])(?:{names})(?![\w.-])")

    def __call__(self, text: str) -> str:
        return self._pattern.sub(lambda found: self._places[found[0]], text)


def make_tasks(split: Split, folder: str, only: Sequence[str] = ()) -> Sequence[Task]:
    """Read the tasks of a split.

    Args:
        split: Which part.
        folder: Its folders with a `task.toml` are the tasks.
        only: Names of these folders; empty: all.

    Raises:
        ValueError: one line: there is no task, or one that needs more than is here.
    """
    found = sorted(path.parent for path in Path(folder).glob("*/task.toml"))
    chosen = [path for path in found if not only or path.name in only]
    if not chosen or len(chosen) < len(only):
        raise ValueError(f"{folder}: no such tasks: {', '.join(only) or '*/task.toml'}")
    tasks = [read_task(path) for path in chosen]
    return tuple(task for task in tasks if split_of(task.id) is split)


def read_task(folder: Path) -> Task:
    """Read one task folder.

    Args:
        folder: With `task.toml`.

    Raises:
        ValueError: one line: a file is missing or broken, or needs more than is here.
    """
    try:
        config = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
        image = _read_image(folder / "environment", config)
        move = _Mover(image.work_folder)
        instruction = move((folder / "instruction.md").read_text(encoding="utf-8"))
        files = _read_files(folder / "environment", image, move)
        tests = _read_tree(folder / "tests", move)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ValueError) as error:
        raise ValueError(f"{folder}: {' '.join(str(error).split())}") from None
    if "test.sh" not in tests:
        raise ValueError(f"{folder}: tests/test.sh is missing")
    solution = _read_tree(folder / "solution", move)
    return Task(
        id=f"harbor/{folder.name}",
        environment=ADDRESS,
        grader=GRADER,
        data={"instruction": instruction.strip(), "files": dict(files)},
        reference={
            "tests": dict(tests),
            "seconds": float(config.get("verifier", {}).get("timeout_sec", 600.0)),
            "solution": dict(solution),
        },
    )


class HarborWorld(Workspace):
    """Work on files, run commands, submit."""

    _files: Mapping[str, JsonValue] | None = None

    async def reset(self, instruction: str, files: dict[str, str]) -> str:
        """Set the task: a workspace with the files that the image would have."""
        self._sandbox = await start_sandbox(LIMITS, owner="harbor")
        for path, content in files.items():
            await self._sandbox.write(path, base64.b64decode(content))
        return instruction

    async def run(self, command: str) -> str:
        """Run a shell command in the workspace and show what it prints.

        Args:
            command: For bash.
        """
        try:
            await self._get_sandbox().write(
                f"{PRIVATE}/command", command.encode("utf-8", "replace")
            )
        except WorkspaceError as error:
            raise ToolError(str(error)) from None
        result = await self._get_sandbox().exec(["bash", f"{PRIVATE}/command"])
        output = (result.stdout + result.stderr).decode("utf-8", "replace").strip()
        if result.timed_out:
            output += "\n(ended: out of time)"
        elif result.exit_code:
            output += f"\n(exit code {result.exit_code})"
        return output[-MAX_OUTPUT_CHARACTERS:].strip() or "(no output)"

    async def submit(self) -> str:
        """Hand the files in; this ends the episode."""
        paths = [path for path in await self._list_paths() if not path.startswith(f"{PRIVATE}/")]
        if len(paths) > MAX_FILES:
            raise ToolError(f"{len(paths)} files are too many: {MAX_FILES} at most")
        files: dict[str, JsonValue] = {}
        try:
            for path in paths:
                content = await self._get_sandbox().read(path, MAX_FILE_CHARACTERS)
                files[path] = base64.b64encode(content).decode("ascii")
        except WorkspaceError as error:
            raise ToolError(str(error)) from None
        self._files = files
        return "submitted"

    def done(self) -> bool:
        """Whether the files are handed in."""
        return self._files is not None

    def artifacts(self) -> dict[str, JsonValue]:
        """The files, path to base64; nothing before they are handed in."""
        return {} if self._files is None else {"files": dict(self._files)}


def make_expert(task: Task, source: random.Random) -> Expert:
    """Make a scripted policy: it runs `solution/solve.sh`, and submits.

    Raises:
        ValueError: the task has no solution.
    """
    del source
    solution = cast("Mapping[str, str]", task.reference["solution"])
    if "solve.sh" not in solution:
        raise ValueError(f"task {task.id} has no solution/solve.sh")
    unpack = [
        f"mkdir -p {PRIVATE}/solution/{PurePosixPath(path).parent} && "
        f"echo {content} | base64 -d > {PRIVATE}/solution/{path}"
        for path, content in solution.items()
    ]
    calls = [
        ToolCall(
            name="run",
            arguments={"command": "\n".join([*unpack, f"bash {PRIVATE}/solution/solve.sh"])},
        ),
        ToolCall(name="submit"),
    ]

    def act(messages: Sequence[Message]) -> Message:
        num_done = sum(message.role is Role.POLICY for message in messages)
        return Message(role=Role.POLICY, tool_calls=(calls[num_done],))

    return act


def _read_image(folder: Path, config: Mapping[str, object]) -> _Image:
    """Read what the image would be; refuse what cannot be had without building one."""
    environment = cast("Mapping[str, object]", config.get("environment", {}))
    if config.get("steps"):
        raise ValueError("it has several steps")
    if environment.get("docker_image") or (folder / "docker-compose.yaml").exists():
        raise ValueError("it needs an image of its own")
    work_folder, copies = "/", []
    for line in (folder / "Dockerfile").read_text(encoding="utf-8").splitlines():
        word, _, rest = line.strip().partition(" ")
        if not word or word.startswith("#") or word.upper() == "FROM":
            continue
        parts = rest.split()
        if word.upper() == "WORKDIR":
            work_folder = str(PurePosixPath(work_folder) / rest.strip())
        elif word.upper() == "COPY" and len(parts) == 2 and not rest.startswith(("-", "[")):
            name = PurePosixPath(parts[0]).name if parts[1].endswith(("/", ".")) else ""
            is_file = (folder / parts[0]).is_file()
            target = PurePosixPath(work_folder) / parts[1] / (name if is_file else "")
            copies.append((parts[0], str(target)))
        else:
            raise ValueError(f"it needs an image of its own: {line.strip()[:60]}")
    if work_folder == "/":
        raise ValueError("its Dockerfile sets no WORKDIR")
    return _Image(work_folder=work_folder, copies=tuple(copies))


def _read_files(folder: Path, image: _Image, move: _Mover) -> dict[str, str]:
    """Read what the image would copy: path in the workspace to base64."""
    files: dict[str, str] = {}
    for source, target in image.copies:
        place = PurePosixPath(target)
        if not place.is_relative_to(image.work_folder):
            raise ValueError(f"it copies to {target}, outside of {image.work_folder}")
        inside = place.relative_to(image.work_folder)
        path = folder / source
        if path.is_dir():
            tree = _read_tree(path, move)
            tree.pop("Dockerfile", None)
            files |= {str(inside / name): content for name, content in tree.items()}
        else:
            files[str(inside)] = _encode(path, move)
    return files


def _read_tree(folder: Path, move: _Mover) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): _encode(path, move)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _encode(path: Path, move: _Mover) -> str:
    """Encode a file as base64: a text with its paths moved, anything else as it is."""
    content = path.read_bytes()
    with contextlib.suppress(UnicodeDecodeError):
        content = move(content.decode("utf-8")).encode("utf-8")
    return base64.b64encode(content).decode("ascii")


SPEC = EnvironmentSpec(name="harbor", environment=HarborWorld, tasks=make_tasks, expert=make_expert)
