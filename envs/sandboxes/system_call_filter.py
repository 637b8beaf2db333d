"""A filter of system calls, for what namespaces do not separate.

Programs and the guest that watches them are processes of one user in one namespace. Signals do not
reach the guest, but without this a program could lower the guest's limits or priority, and make
its own failure look like one of the infrastructure. The rest of the list is kernel surface that no
solution to a task needs. A refused call fails with EPERM; a foreign architecture kills.
"""

import platform
import struct
from collections.abc import Sequence

_NUMBERS = {
    # Name: x86_64, aarch64.
    "add_key": (248, 217),
    "bpf": (321, 280),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "keyctl": (250, 219),
    "perf_event_open": (298, 241),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "request_key": (249, 218),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "setpriority": (141, 140),
    "userfaultfd": (323, 282),
}
_PRLIMIT = (302, 261)
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Machine: column of the numbers above, and what the kernel calls it."""

_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Offsets in the kernel's `seccomp_data`."""
_KILL, _ALLOW, _NOT_PERMITTED = 0x80000000, 0x7FFF0000, 0x00050001
_X32 = 0x40000000
"""From here on, x86_64 numbers the calls of another binary interface."""


def make_filter(machine: str = "") -> bytes:
    """Make the filter, as the kernel wants it: instructions of eight bytes.

    Args:
        machine: As `uname -m` says it; this one where empty.

    Returns:
        The program, empty for a machine whose numbers are not known here.
    """
    column, architecture = _ARCHITECTURES.get(machine or platform.machine(), (0, 0))
    if not architecture:
        return b""
    refuse = _instruction(_RETURN, value=_NOT_PERMITTED)
    program = [
        _instruction(_LOAD, value=_ARCHITECTURE),
        _instruction(_IF_EQUAL, value=architecture, skip_if=1),
        _instruction(_RETURN, value=_KILL),
        _instruction(_LOAD, value=_NUMBER),
        _instruction(_IF_AT_LEAST, value=_X32, skip_unless=1),
        refuse,
    ]
    for numbers in _NUMBERS.values():
        program += [_instruction(_IF_EQUAL, value=numbers[column], skip_unless=1), refuse]
    program += _refuse_limits_of_others(column, refuse)
    return b"".join([*program, _instruction(_RETURN, value=_ALLOW)])


def _refuse_limits_of_others(column: int, refuse: bytes) -> Sequence[bytes]:
    """A process may set its own limits, which is process 0 to `prlimit`, and no other's."""
    return [
        _instruction(_IF_EQUAL, value=_PRLIMIT[column], skip_unless=3),
        _instruction(_LOAD, value=_FIRST_ARGUMENT),
        _instruction(_IF_EQUAL, value=0, skip_if=1),
        refuse,
    ]


def _instruction(code: int, *, value: int, skip_if: int = 0, skip_unless: int = 0) -> bytes:
    return struct.pack("=HBBI", code, skip_if, skip_unless, value)
