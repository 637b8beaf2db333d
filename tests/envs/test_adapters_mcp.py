"""A real MCP server, written with the SDK, over stdio and over HTTP."""

import asyncio
import contextlib
import socket
import sys
from dataclasses import replace

import psutil
import pytest

from envs.adapters.mcp import mcp_environment
from envs.environment import Split
from envs.messages import Message, Role, ToolCall
from envs.play import play
from envs.soundness import CheckLimits
from envs.task import Task
from envs.task_sets import split_of
from envs.tools import tool_specs
from rewards.check import prove
from rewards.reward import Scored

SERVER = '''
import sys
from mcp.server import MCPServer

server = MCPServer("notes")
notes = {}

@server.tool()
def write_note(title: str, text: str, is_pinned: bool | None = None) -> str:
    """Write a note.

    Replaces one of the same title."""
    notes[title] = text
    return f"{len(notes)} notes"

@server.tool()
def read_note(title: str) -> str:
    """Read a note."""
    return notes[title]

@server.tool()
def crash() -> str:
    """End the server."""
    import os
    os._exit(3)

if len(sys.argv) > 1:
    server.run("streamable-http", port=int(sys.argv[1]))
else:
    server.run()
'''


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    path = tmp_path_factory.mktemp("mcp") / "notes_server.py"
    path.write_text(SERVER)
    return [sys.executable, str(path)]


def make_tasks(split):
    keys = [f"notes/{index}" for index in range(20)]
    return [
        Task(id=key, environment="notes", grader=f"{__name__}:grade", data={"prompt": key})
        for key in keys
        if split_of(key) is split
    ]


async def grade(episode):
    return Scored(value=float(episode.artifacts.get("answer") == "milk"))


@pytest.fixture(scope="module")
def spec(command):
    return mcp_environment(name="notes", server=command, tasks=make_tasks)


def play_script(spec, *calls):
    """Play calls `(tool, arguments)` in one episode, and give its replies."""
    actions = [
        Message(role=Role.POLICY, tool_calls=(ToolCall(name=name, arguments=arguments),))
        for name, arguments in calls
    ]
    script = iter(actions)
    task = make_tasks(Split.TRAIN)[0]
    episode = asyncio.run(play(spec, task, lambda _: next(script), max_turns=len(calls)))
    return episode, [message.text for message in episode.messages if message.role is Role.TOOL]


def test_the_servers_tools_are_the_policys(spec):
    tools = {tool.name: tool for tool in tool_specs(spec.environment)}
    assert set(tools) == {"submit", "write_note", "read_note", "crash"}
    write = tools["write_note"]
    assert write.description == "Write a note. Replaces one of the same title."
    assert [(each.name, each.type, each.is_required) for each in write.parameters] == [
        ("title", "string", True),
        ("text", "string", True),
        ("is_pinned", "boolean", False),
    ]


def test_an_episode_uses_the_server_and_submits_an_answer(spec):
    episode, replies = play_script(
        spec,
        ("write_note", {"title": "shop", "text": "milk"}),
        ("read_note", {"title": "shop"}),
        ("submit", {"answer": "milk"}),
    )
    assert replies == ["1 notes", "milk", "submitted"]
    assert episode.artifacts == {"answer": "milk"}


def test_each_episode_has_a_server_of_its_own(spec):
    play_script(spec, ("write_note", {"title": "shop", "text": "milk"}))
    _, replies = play_script(spec, ("read_note", {"title": "shop"}))
    assert replies[0].startswith("error: ")


def test_no_server_outlives_its_episode(spec, command):
    play_script(spec, ("write_note", {"title": "shop", "text": "milk"}))
    left = [
        process.pid
        for process in psutil.Process().children(recursive=True)
        if command[1] in process.cmdline()
    ]
    assert left == []


def test_wrong_arguments_are_the_policys_error(spec):
    _, replies = play_script(spec, ("read_note", {}), ("read_note", {"title": 3}))
    assert all(reply.startswith("error: ") for reply in replies)


def test_a_server_that_dies_is_no_zero(spec):
    episode, _ = play_script(spec, ("crash", {}))
    assert episode.stop == "environment_error"


@pytest.mark.slow
def test_the_checker_accepts_a_sound_server(command, tmp_path, monkeypatch):
    path = tmp_path / "sound_server.py"
    path.write_text(SERVER.replace("    import os\n    os._exit(3)\n", '    return "no"\n'))
    (tmp_path / "notes_grader.py").write_text(
        "from rewards.reward import Scored\n"
        "async def grade(episode):\n"
        "    return Scored(value=float(episode.artifacts.get('answer') == 'milk'))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def tasks(split):
        return [replace(task, grader="notes_grader:grade") for task in make_tasks(split)]

    sound = mcp_environment(name="notes", server=[sys.executable, str(path)], tasks=tasks)
    limits = CheckLimits(num_tasks=1, leak_episodes=10)  # each starts a server
    assert asyncio.run(prove(sound, limits=limits)).failures == []


def test_a_server_is_reached_over_http(command):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]

    async def serve_and_play():
        process = await asyncio.create_subprocess_exec(
            *command, str(port), stderr=asyncio.subprocess.DEVNULL
        )
        try:
            for _ in range(200):
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                await asyncio.sleep(0.05)
            url = f"http://127.0.0.1:{port}/mcp"
            spec = mcp_environment(name="notes", server=url, tasks=make_tasks)
            actions = iter(
                Message(role=Role.POLICY, tool_calls=(ToolCall(name=name, arguments=arguments),))
                for name, arguments in (
                    ("write_note", {"title": "shop", "text": "milk"}),
                    ("read_note", {"title": "shop"}),
                )
            )
            task = make_tasks(Split.TRAIN)[0]
            return await play(spec, task, lambda _: next(actions), max_turns=2)
        finally:
            process.terminate()
            await process.wait()

    episode = asyncio.run(serve_and_play())
    assert [message.text for message in episode.messages[2::2]] == ["1 notes", "milk"]


def test_a_server_that_does_not_start_is_one_line(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("raise SystemExit('no notes today')")
    with pytest.raises(ValueError, match=r"^no MCP server: no notes today "):
        mcp_environment(name="broken", server=[sys.executable, str(path)], tasks=make_tasks)
    with pytest.raises(ValueError, match=r"^no MCP server: "):
        mcp_environment(name="none", server=["no-such-command"], tasks=make_tasks)


@pytest.mark.parametrize("name", ["reset", "submit", "_hidden"])
def test_a_tool_with_a_name_of_the_environments_own_is_refused(tmp_path, name):
    path = tmp_path / "clash.py"
    path.write_text(
        "from mcp.server import MCPServer\n"
        "server = MCPServer('clash')\n"
        f"server.tool(name={name!r})(lambda: 'x')\n"
        "server.run()\n"
    )
    with pytest.raises(ValueError, match="no tool may be called"):
        mcp_environment(name="clash", server=[sys.executable, str(path)], tasks=make_tasks)
