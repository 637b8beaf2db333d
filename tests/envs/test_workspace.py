"""Tools on files: what they do, and what they say where they cannot."""

import pytest

from envs.environment import ToolError
from envs.workspace import MAX_FILE_CHARACTERS, MAX_OUTPUT_CHARACTERS, Workspace


@pytest.fixture
async def workspace():
    world = Workspace()
    await world._start_workspace({"solution.py": "x = 1\ny = 1\n", "lib/a.py": "z = 3\n"}, "test")
    yield world
    await world.close()


async def test_files_are_listed_read_written_and_patched(workspace):
    assert await workspace.list_files() == "solution.py\nlib/a.py"
    assert await workspace.read_file("lib/a.py") == "z = 3\n"
    assert await workspace.write_file("new/b.py", "b = 2") == "wrote new/b.py"
    assert await workspace.patch_file("solution.py", "y = 1", "y = 2") == "patched solution.py"
    assert await workspace.read_file("solution.py") == "x = 1\ny = 2\n"
    assert set(await workspace._read_submission()) == {"solution.py", "lib/a.py", "new/b.py"}


@pytest.mark.parametrize(("old", "count"), [("= 1", 2), ("w = 1", 0), ("", 0)])
async def test_a_patch_wants_a_piece_that_occurs_once(workspace, old, count):
    with pytest.raises(ToolError, match=f"occurs {count} times"):
        await workspace.patch_file("solution.py", old, "= 2")


@pytest.mark.parametrize("path", ["missing.py", "../secret", "/etc/passwd", "lib"])
async def test_what_is_no_file_of_the_workspace_is_not_read(workspace, path):
    with pytest.raises(ToolError):
        await workspace.read_file(path)


async def test_programs_import_the_files_and_show_what_they_print(workspace):
    assert await workspace.run_python("import solution; print(solution.x)") == "1"
    assert await workspace.run_python("pass") == "(no output)"
    assert "ZeroDivisionError" in await workspace.run_python("1 / 0")
    assert (await workspace.run_python("import sys; sys.exit(3)")) == "(exit code 3)"
    long = await workspace.run_python("print('a' * 5000 + 'end')")
    assert len(long) <= MAX_OUTPUT_CHARACTERS
    assert long.endswith("end")


async def test_text_that_is_no_text_or_too_long_is_answered(workspace):
    await workspace.write_file("odd.py", "'\ud800\0'")
    assert await workspace.read_file("odd.py") in {"'?\0'", "'??'"}
    with pytest.raises(ToolError, match="at most"):
        await workspace.write_file("big.py", "x" * (MAX_FILE_CHARACTERS + 1))
    await workspace.run_python("open('raw', 'wb').write(bytes([255, 254]))")
    with pytest.raises(ToolError, match="no UTF-8"):
        await workspace.read_file("raw")


async def test_closing_ends_the_sandbox_and_may_be_done_twice(workspace):
    await workspace.close()
    await workspace.close()
    with pytest.raises(ToolError, match="closed"):
        await workspace.list_files()
