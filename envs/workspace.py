"""Tools to work on files: list, read, write, patch, run Python.

A mixin: environments that let a policy program derive from `Workspace`, await `_start_workspace` in
their `reset` and `_read_submission` when it submits. The files live in a sandbox of the episode's
own (`envs/sandboxes`), and so does whatever is run; no hidden test ever comes near it.
"""

import json
from collections.abc import Mapping

from envs.environment import ToolError
from envs.sandboxes.protocol import Sandbox, SandboxLimits, WorkspaceError
from envs.sandboxes.registry import start_sandbox

MAX_FILE_CHARACTERS = 50_000
MAX_FILES = 50
MAX_OUTPUT_CHARACTERS = 1500
"""What `run_python` shows of what a program printed: its end."""
LIMITS = SandboxLimits(wall_seconds=8.0, cpu_seconds=4)

_LIST_FILES = """
import json, os
found = []
for folder, folders, files in os.walk("."):
    folders[:] = sorted(name for name in folders if name != "__pycache__")
    found += [os.path.relpath(os.path.join(folder, name)) for name in sorted(files)]
print(json.dumps(found[:200]))
"""


class Workspace:
    """List, read, write and patch files; run Python."""

    _sandbox: Sandbox | None = None

    async def _start_workspace(self, files: Mapping[str, str], owner: str) -> None:
        """Start the sandbox, with some files in it.

        Raises:
            SandboxError: it does not start.
        """
        self._sandbox = await start_sandbox(LIMITS, owner=owner)
        for path, text in files.items():
            await self._sandbox.write(path, text.encode("utf-8"))

    async def list_files(self) -> str:
        """List the files of the workspace."""
        return "\n".join(await self._list_paths()) or "no files"

    async def read_file(self, path: str) -> str:
        """Read a file.

        Args:
            path: Of the file, from the workspace on.
        """
        return await self._read(path)

    async def write_file(self, path: str, text: str) -> str:
        """Write a file, in place of an earlier one.

        Args:
            path: Of the file, from the workspace on.
            text: All of it.
        """
        await self._write(path, text)
        return f"wrote {path}"

    async def patch_file(self, path: str, old: str, new: str) -> str:
        """Replace a piece of a file.

        Args:
            path: Of the file, from the workspace on.
            old: The piece as it is; it has to occur exactly once.
            new: What comes in its place.
        """
        text = await self._read(path)
        count = text.count(old) if old else 0
        if count != 1:
            raise ToolError(f"the old piece occurs {count} times in {path}, not once")
        await self._write(path, text.replace(old, new))
        return f"patched {path}"

    async def run_python(self, code: str) -> str:
        """Run a Python program in the workspace and show what it prints.

        Args:
            code: Text of the program; it can import the files.
        """
        # As a file's program would find them: the workspace first, on top of the bare library.
        program = f"import sys\nsys.path.insert(0, '')\n{code}"
        result = await self._get_sandbox().exec(
            ["python3", "-I", "-S", "-c", _encode(program).decode("utf-8")]
        )
        output = (result.stdout + result.stderr).decode("utf-8", "replace").strip()
        if result.timed_out:
            output += "\n(ended: out of time)"
        elif result.exit_code:
            output += f"\n(exit code {result.exit_code})"
        return output[-MAX_OUTPUT_CHARACTERS:].strip() or "(no output)"

    async def close(self) -> None:
        """Stop the sandbox."""
        if self._sandbox is not None:
            await self._sandbox.stop()
            self._sandbox = None

    async def _read_submission(self) -> dict[str, str]:
        """Read the Python files of the workspace: path to text."""
        paths = [path for path in await self._list_paths() if path.endswith(".py")]
        return {path: await self._read(path) for path in paths[:MAX_FILES]}

    async def _list_paths(self) -> list[str]:
        result = await self._get_sandbox().exec(["python3", "-I", "-S", "-c", _LIST_FILES])
        try:
            return [str(path) for path in json.loads(result.stdout)]
        except ValueError:
            raise ToolError("the files cannot be listed") from None

    async def _read(self, path: str) -> str:
        try:
            return (await self._get_sandbox().read(path, MAX_FILE_CHARACTERS)).decode("utf-8")
        except WorkspaceError as error:
            raise ToolError(str(error)) from None
        except UnicodeDecodeError:
            raise ToolError(f"{path} is no UTF-8 text") from None

    async def _write(self, path: str, text: str) -> None:
        content = _encode(text)
        if len(content) > MAX_FILE_CHARACTERS:
            raise ToolError(f"a file has at most {MAX_FILE_CHARACTERS} bytes")
        try:
            await self._get_sandbox().write(path, content)
        except WorkspaceError as error:
            raise ToolError(str(error)) from None

    def _get_sandbox(self) -> Sandbox:
        if self._sandbox is None:
            raise ToolError("the workspace is closed")
        return self._sandbox


def _encode(text: str) -> bytes:
    """Encode what a policy wrote; half a character of it becomes a question mark."""
    return text.replace("\0", "?").encode("utf-8", "replace")
