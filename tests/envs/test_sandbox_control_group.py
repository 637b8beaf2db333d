"""Control groups and the filter of system calls: what a backend builds on."""

import os
import struct
import subprocess

import pytest

from envs.sandboxes.control_group import (
    can_make_control_groups,
    enter_command,
    make_control_groups,
)
from envs.sandboxes.lease import open_lease
from envs.sandboxes.system_call_filter import make_filter


def test_a_process_enters_its_groups_and_a_lease_removes_them_with_it():
    if not can_make_control_groups():
        pytest.skip("no control groups here")
    groups = make_control_groups(f"limosa-test-{os.getpid()}", 64 << 20, 5)
    lease = open_lease("groups").record(control_groups=tuple(map(str, groups)))
    process = subprocess.Popen([*enter_command(groups), "sleep", "60"])
    for group in groups:
        while str(process.pid) not in (group / "cgroup.procs").read_text().split():
            assert process.poll() is None
    lease.release()
    assert process.wait() == -9
    assert [group for group in groups if group.exists()] == []


def test_a_command_that_cannot_enter_its_group_does_not_run(tmp_path):
    command = [*enter_command([tmp_path / "missing"]), "echo", "ran"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert result.stdout == ""
    assert enter_command([]) == []


def test_where_there_are_no_groups_none_are_made(monkeypatch, tmp_path):
    monkeypatch.setattr("envs.sandboxes.control_group.HIERARCHY", tmp_path)
    assert list(make_control_groups("x", 1 << 20, 5)) == []
    assert not can_make_control_groups()


def run_filter(program, number, architecture=0xC000003E, first_argument=0):
    """Interpret a filter as the kernel would, on one system call."""
    data = struct.pack("=IIQQQQQQQ", number, architecture, 0, first_argument, 0, 0, 0, 0, 0)
    loaded, position = 0, 0
    instructions = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    while True:
        code, skip_if, skip_unless, value = instructions[position]
        position += 1
        if code == 0x06:
            return {0x80000000: "kill", 0x7FFF0000: "allow", 0x00050001: "refuse"}[value]
        if code == 0x20:
            (loaded,) = struct.unpack_from("=I", data, value)
        else:
            is_met = loaded == value if code == 0x15 else loaded >= value
            position += skip_if if is_met else skip_unless


def test_the_filter_refuses_what_it_names_and_nothing_else():
    program = make_filter("x86_64")
    assert run_filter(program, 0) == "allow"  # read
    assert run_filter(program, 59) == "allow"  # execve
    assert run_filter(program, 101) == "refuse"  # ptrace
    assert run_filter(program, 141) == "refuse"  # setpriority
    assert run_filter(program, 302, first_argument=0) == "allow"  # prlimit of oneself
    assert run_filter(program, 302, first_argument=1) == "refuse"
    assert run_filter(program, 0x40000000) == "refuse"  # read, by another binary interface
    assert run_filter(program, 0, architecture=0x40000003) == "kill"  # i386
    arm = make_filter("aarch64")
    assert run_filter(arm, 117, architecture=0xC00000B7) == "refuse"  # ptrace
    assert run_filter(arm, 261, architecture=0xC00000B7, first_argument=7) == "refuse"
    assert run_filter(arm, 63, architecture=0xC00000B7) == "allow"  # read
