"""The inside of a sandbox: runs programs and moves files, as its caller asks over standard input.

This file is not imported: its text is handed to a bare interpreter inside the sandbox
(`python3 -I -S -c TEXT SETTINGS`), so it needs nothing but the standard library. It is the first
process in there. Requests and replies are frames: four bytes of length, a header, and as many bytes
as the header says. Headers of replies are JSON, which is safe to read for whoever trusts nobody in
here; those of requests are Python literals, since this side trusts its caller.

A sandbox starts as fast as this file: each module that it does without (json, signal, contextlib
and what they import) is worth milliseconds.

Programs run as the same user as this process, which they cannot read, write or signal: it is not
dumpable (where the backend leaves that to it) and, where there is a namespace, process 1 of it.
"""

import os
import resource
import select
import stat
import sys
import time
from _json import encode_basestring_ascii

ENVIRONMENT = {
    "HOME": "",  # set to the workspace
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "TMPDIR": "/tmp",
}
ALIAS = "/workspace"
"""What callers may call the workspace, wherever it is."""
SIGKILL, SIGXCPU = 9, 24
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36


class RefusedError(Exception):
    """What was asked for is not possible; the text says why."""


def prctl(option: int, value: int) -> None:
    """Call `prctl(2)`."""
    import ctypes

    if ctypes.CDLL(None).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(f"prctl({option}, {value}) failed")


def read_exactly(size: int) -> bytes:
    """Read from the caller; where it has hung up, everything in here ends."""
    parts = []
    while size > 0:
        part = os.read(0, min(size, 1 << 20))
        if not part:
            leave()
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def reply(header: dict, *contents: bytes) -> None:
    """Send a frame to the caller."""
    facts = {**header, "sizes": [len(content) for content in contents]}
    text = encode(facts).encode()
    message = memoryview(b"".join((len(text).to_bytes(4, "big"), text, *contents)))
    while message:
        message = message[os.write(1, message) :]


def encode(value: object) -> str:
    """Write a value as JSON."""
    if isinstance(value, dict):
        items = (f"{encode(key)}: {encode(item)}" for key, item in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    return repr(value).lower() if isinstance(value, bool) else repr(value)


def leave() -> None:
    """End every process in the sandbox, this one last."""
    end_programs()
    os._exit(0)


def end_programs() -> None:
    """Kill all processes but this one, and collect them.

    -1 means whatever this process may signal: its namespace, or its Landlock domain.
    """
    while True:
        try:
            os.kill(-1, SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        try:
            os.waitpid(-1, 0)  # orphans become children of this process
        except ChildProcessError:
            return


def check_signals_are_confined() -> None:
    """Refuse to serve where `end_programs` would reach processes outside of the sandbox."""
    if os.getpid() == 1:
        return
    try:
        os.kill(os.getppid(), 0)
    except PermissionError:
        return
    sys.exit("signals are not confined to the sandbox")


class Guest:
    """Does what the caller asks, one thing at a time.

    Args:
        settings: `workspace`, and the limits: `cpu_seconds`, `memory_bytes`, `max_processes` (0:
            somebody else sees to it), `max_file_bytes`, `is_hiding`: this
            process makes itself unreadable to programs.
    """

    def __init__(self, settings: dict) -> None:
        self.settings = settings
        self.workspace = os.open(settings["workspace"], os.O_RDONLY | os.O_DIRECTORY)

    def serve(self) -> None:
        """Answer until the caller hangs up."""
        actions = {
            "exec": self.exec,
            "read": self.read,
            "write": self.write,
        }
        reply({"ready": True})
        while True:
            header = eval(read_exactly(int.from_bytes(read_exactly(4), "big")))
            content = read_exactly(header.pop("size"))
            try:
                facts, contents = actions[header.pop("do")](content, **header)
                reply(facts, *contents)
            except (RefusedError, OSError, RecursionError, MemoryError) as error:
                reply(
                    {
                        "refused": getattr(error, "strerror", None)
                        or str(error)
                        or type(error).__name__
                    }
                )

    def exec(self, stdin: bytes, argv: list, wall_seconds: float, max_output: int) -> tuple:
        """Run a program to its end, its deadline or its last allowed byte of output."""
        started = time.monotonic()
        source = os.memfd_create("stdin")
        with open(source, "wb", closefd=False) as file:
            file.write(stdin)
        os.lseek(source, 0, os.SEEK_SET)
        pipes = [os.pipe(), os.pipe()]
        pid = os.fork()
        if pid == 0:
            self.become_program(argv, source, pipes[0][1], pipes[1][1])
        for descriptor in (source, pipes[0][1], pipes[1][1]):
            os.close(descriptor)
        outputs = [bytearray(), bytearray()]
        readers = [pipes[0][0], pipes[1][0]]
        try:
            ending = watch(pid, readers, outputs, started + wall_seconds, max_output)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            end_programs()
            is_complete = all([drain(*pair, outputs, max_output) for pair in zip(readers, outputs)])
        finally:
            for reader in readers:
                os.close(reader)
        if ending == "hung up":
            leave()
        facts = {
            "exit_code": status if status >= 0 else 128 - status,
            "timed_out": ending == "deadline" or status == -SIGXCPU,
            "truncated": ending == "flood" or not is_complete,
            "seconds": time.monotonic() - started,
        }
        return facts, [bytes(output) for output in outputs]

    def become_program(self, argv: list, stdin: int, stdout: int, stderr: int) -> None:
        """Turn a fork of this process into a program; never returns."""
        try:
            os.setsid()
            os.fchdir(self.workspace)
            for number, descriptor in enumerate((stdin, stdout, stderr)):
                os.dup2(descriptor, number)
            os.closerange(3, 1024)
            # From here on others in the sandbox may look into this process: it holds nothing.
            if self.settings["is_hiding"]:
                prctl(PR_SET_DUMPABLE, 1)
            make_first_victim()
            self.set_limits()
            os.execvpe(argv[0], argv, {**ENVIRONMENT, "HOME": self.settings["workspace"]})
        except BaseException as error:
            os.write(2, f"{argv[0]}: {getattr(error, 'strerror', None) or error}\n".encode())
        finally:
            os._exit(127)

    def set_limits(self) -> None:
        """Bound this process and its children."""
        settings = self.settings
        limits = {
            resource.RLIMIT_CPU: settings["cpu_seconds"],
            resource.RLIMIT_AS: settings["memory_bytes"],
            resource.RLIMIT_FSIZE: settings["max_file_bytes"],
            resource.RLIMIT_NOFILE: 256,
            resource.RLIMIT_CORE: 0,
        }
        if settings["max_processes"]:
            limits[resource.RLIMIT_NPROC] = settings["max_processes"]
        for limit, value in limits.items():
            # A second more of CPU time until SIGKILL, for those who ignore SIGXCPU.
            resource.setrlimit(limit, (value, value + (limit == resource.RLIMIT_CPU)))

    def open_file(self, path: str, flags: int) -> int:
        """Open a regular file of the workspace without following any link on the way."""
        inside = path
        for root in (self.settings["workspace"], ALIAS):
            inside = inside.removeprefix(f"{root}/")
        names = [name for name in inside.split("/") if name not in ("", ".")]
        if not names or ".." in names or "\0" in path or inside.startswith("/"):
            raise RefusedError(f"{path!r} is no path in the workspace")
        folder = os.dup(self.workspace)
        try:
            for name in names[:-1]:
                if flags & os.O_CREAT:
                    make_folder(name, folder)
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
                os.close(folder)
                folder = inner
            # Not blocking: the program may have put a pipe there.
            flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = os.open(names[-1], flags, 0o644, dir_fd=folder)
        finally:
            os.close(folder)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise RefusedError(f"{path!r} is no regular file")
        return file

    def read(self, _: bytes, path: str, max_bytes: int) -> tuple:
        """Return the bytes of a file."""
        with open(self.open_file(path, os.O_RDONLY), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > max_bytes:
                raise RefusedError(f"{path!r} has {size} bytes, more than {max_bytes}")
            return {}, [file.read(max_bytes)]

    def write(self, content: bytes, path: str) -> tuple:
        """Write a file; nothing of it remains where it does not fit."""
        file = self.open_file(path, os.O_WRONLY | os.O_CREAT)
        try:
            os.ftruncate(file, 0)
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(file, rest) :]
        except OSError:
            os.ftruncate(file, 0)
            raise
        finally:
            os.close(file)
        return {}, []


def make_first_victim() -> None:
    """Where memory runs out, this process goes before the guest does."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass  # a backend that hides the file bounds memory by itself


def make_folder(name: str, parent: int) -> None:
    """Make a folder where there is none."""
    try:
        os.mkdir(name, 0o755, dir_fd=parent)
    except FileExistsError:
        pass


def watch(pid: int, readers: list, outputs: list, deadline: float, max_output: int) -> str:
    """Read a program's output until it ends or has to.

    Returns:
        `end`, or why it was killed: `deadline`, `flood` of output, or the caller `hung up`.
    """
    handle = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.register(0, select.POLLRDHUP)
    for reader in readers:
        os.set_blocking(reader, False)
        poll.register(reader, select.POLLIN)
    ending = "end"
    try:
        while ending == "end":
            left = deadline - time.monotonic()
            ready = {number for number, _ in poll.poll(max(0, left * 1000))}
            for reader, output in zip(readers, outputs):
                if reader in ready and not drain(reader, output, outputs, max_output):
                    ending = "flood"
                elif reader in ready and is_at_end(reader):
                    poll.unregister(reader)
            if handle in ready:
                break
            if 0 in ready:
                ending = "hung up"
            elif left <= 0:
                ending = "deadline"
        if ending != "end":
            os.kill(pid, SIGKILL)
    finally:
        os.close(handle)
    return ending


def drain(reader: int, output: bytearray, outputs: list, max_output: int) -> bool:
    """Move what a pipe holds to `output`; False where all outputs together are full."""
    while True:
        room = max_output - sum(map(len, outputs))
        try:
            part = os.read(reader, min(room + 1, 65_536))
        except BlockingIOError:
            return True
        output += part[:room]
        if len(part) > room:
            return False
        if not part:
            return True


def is_at_end(reader: int) -> bool:
    """Whether nobody can write to a pipe any more and nothing is left in it."""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    return any(events & select.POLLHUP and not events & select.POLLIN for _, events in poll.poll(0))


if __name__ == "__main__":
    SETTINGS = eval(sys.argv[1])
    if SETTINGS["is_hiding"]:
        prctl(PR_SET_DUMPABLE, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    check_signals_are_confined()
    Guest(SETTINGS).serve()
