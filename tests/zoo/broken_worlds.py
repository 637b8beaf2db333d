"""Environments, each broken in one way: `BROKEN` says which check must find it, and only that."""

import asyncio
import os
import random
import subprocess
import tempfile
import threading
import time

from sound_worlds import Vault, make_expert, make_tasks

from envs.environment import EnvironmentSpec, Split

HELD = []
"""What leaking worlds keep: nothing is collected, and the test can end it."""


class Untyped(Vault):
    def enter(self, code) -> str:
        """Enter a code.

        Args:
            code: The code.
        """
        return super().enter(code)


class Unwritable(Vault):
    def enter(self, code: set[int]) -> str:
        """Enter a code.

        Args:
            code: The code.
        """
        return super().enter(code)


class Undocumented(Vault):
    def knock(self, times: int) -> str:
        return "nobody answers"


class Toolless:
    def reset(self, name, code):
        return name


class SleepyReset(Vault):
    def reset(self, name, code):
        time.sleep(3)
        return super().reset(name, code)


class SleepyTool(Vault):
    async def read_note(self) -> str:
        """Read the note."""
        await asyncio.sleep(60)
        return super().read_note()


class SleepyClose(Vault):
    def close(self):
        time.sleep(3)


class Crashing(Vault):
    def enter(self, code: str) -> str:
        """Enter a code.

        Args:
            code: The code.
        """
        raise RuntimeError("jammed")


class Interrupting(Vault):
    def read_note(self) -> str:
        """Read the note."""
        raise KeyboardInterrupt


class Mute(Vault):
    def reset(self, name, code):
        super().reset(name, code)


class Counting(Vault):
    def read_note(self) -> int:
        """Read the note."""
        return 3


class Listing(Vault):
    def artifacts(self):
        return [self.entered]


class RandomOpening(Vault):
    def reset(self, name, code):
        return super().reset(name, code) + os.urandom(8).hex()


class Clock(Vault):
    def read_note(self) -> str:
        """Read the note."""
        return f"{super().read_note()}, it is {time.time_ns()}"


class DatedArtifacts(Vault):
    def artifacts(self):
        return {**super().artifacts(), "date": self.__dict__.setdefault("date", time.time_ns())}


class Numbered(Vault):
    count = 0

    def reset(self, name, code):
        Numbered.count += 1
        return f"episode {Numbered.count}: {super().reset(name, code)}"


class Remembering(Vault):
    last = None

    def reset(self, name, code):
        before, Remembering.last = Remembering.last, name
        return f"{super().reset(name, code)}, after that of {before}"


class Shared(Vault):
    """Its state is the class's: episodes at once read each other's notes."""

    def reset(self, name, code):
        Shared.code_now = code
        return super().reset(name, code)

    def read_note(self) -> str:
        """Read the note."""
        return f"the code is {Shared.code_now}"


class Impatient(Vault):
    asked = 0

    def artifacts(self):
        self.asked += 1
        return {**super().artifacts(), "asked": self.asked}


class Forgetful(Vault):
    def snapshot(self):
        return None

    def restore(self, state):
        pass


class OneWay(Vault):
    restore = None


class Indexed(Vault):
    def read_page(self, number: int) -> str:
        """Read a page of the notebook.

        Args:
            number: 0 or 1.
        """
        return ["blank", "blank as well"][number]


class Encoding(Vault):
    def enter(self, code: str) -> str:
        """Enter a code.

        Args:
            code: The code.
        """
        return super().enter(code.encode().decode())


class Unstoppable(Vault):
    async def read_note(self) -> str:
        """Read the note."""
        try:
            await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            await asyncio.sleep(30)
        return super().read_note()


class Jamming(Vault):
    is_busy = False

    async def read_note(self) -> str:
        """Read the note."""
        self.is_busy = True
        await asyncio.sleep(0.02)
        self.is_busy = False
        return super().read_note()

    def close(self):
        if self.is_busy:
            raise RuntimeError("still busy")


class Wandering(Vault):
    def reset(self, name, code):
        os.chdir(tempfile.gettempdir())
        return super().reset(name, code)


class Exporting(Vault):
    def reset(self, name, code):
        os.environ["VAULT"] = code
        return super().reset(name, code)


class Seeding(Vault):
    def reset(self, name, code):
        random.seed(code)
        return super().reset(name, code)


class LeakingProcesses(Vault):
    def reset(self, name, code):
        HELD.append(subprocess.Popen(["sleep", "60"]))
        return super().reset(name, code)


class LeakingHandles(Vault):
    def reset(self, name, code):
        HELD.append(os.open(os.devnull, os.O_RDONLY))
        return super().reset(name, code)


class LeakingFiles(Vault):
    def reset(self, name, code):
        handle, _ = tempfile.mkstemp()
        os.close(handle)
        return super().reset(name, code)


class LeakingThreads(Vault):
    def reset(self, name, code):
        HELD.append(threading.Event())
        threading.Thread(target=HELD[-1].wait, daemon=True).start()
        return super().reset(name, code)


class LeakingMemory(Vault):
    def reset(self, name, code):
        HELD.append(b"x" * 2**20)
        return super().reset(name, code)


class Revealing(Vault):
    def reset(self, name, code):
        return f"{super().reset(name, code)} ({code})"


class Optional(Vault):
    """Its expert leaves out an argument before one that it gives: no policy can write that."""

    def enter(self, hand: str = "left", code: str = "") -> str:
        """Enter a code.

        Args:
            hand: Which hand to use.
            code: The code.
        """
        return super().enter(code)


def spec_of(environment, grader="sound_worlds:grade", reference=None, expert=make_expert):
    def tasks(split):
        return make_tasks(split, grader, *(() if reference is None else (reference,)))

    return EnvironmentSpec(name="vault", environment=environment, tasks=tasks, expert=expert)


def with_tasks(tasks):
    return EnvironmentSpec(name="vault", environment=Vault, tasks=tasks, expert=make_expert)


def tasks_with(**data):
    rows = [
        {
            "id": task.id,
            "grader": task.grader,
            "data": {**task.data, **data},
            "reference": task.reference,
        }
        for split in Split
        for task in make_tasks(split)
    ]
    return with_tasks(rows)


def raise_an_error(split):
    raise KeyError("no corpus")


class Tolerant(Vault):
    def reset(self, name, code, extra):
        return super().reset(name, code)


def raise_as_expert(task, source):
    raise LookupError("no recipe")


BROKEN = {
    "a parameter without a type": (spec_of(Untyped), "tools"),
    "a type that nobody can write": (spec_of(Unwritable), "tools"),
    "a tool without help": (spec_of(Undocumented), "tools"),
    "no tool": (spec_of(Toolless, expert=None), "tools"),
    "the same id twice": (with_tasks(lambda split: make_tasks(split) * 2), "tasks"),
    "splits that share tasks": (
        with_tasks(lambda split: [task for part in Split for task in make_tasks(part)]),
        "tasks",
    ),
    "a split without tasks": (
        with_tasks(lambda split: make_tasks(split) if split is Split.TRAIN else []),
        "tasks",
    ),
    "tasks that cannot be made": (with_tasks(raise_an_error), "tasks"),
    "a reset that sleeps": (spec_of(SleepyReset), "time"),
    "a tool that sleeps": (spec_of(SleepyTool), "time"),
    "a close that sleeps": (spec_of(SleepyClose), "time"),
    "a tool that crashes": (spec_of(Crashing), "plays"),
    "an expert that crashes": (spec_of(Vault, expert=raise_as_expert), "plays"),
    "a tool that interrupts": (spec_of(Interrupting), "plays"),
    "an opening that is no text": (spec_of(Mute), "plays"),
    "a reply that is no text": (spec_of(Counting), "plays"),
    "artifacts that are no dict": (spec_of(Listing), "plays"),
    "an opening that is drawn": (spec_of(RandomOpening), "determinism"),
    "a reply with the time": (spec_of(Clock), "determinism"),
    "artifacts with the time": (spec_of(DatedArtifacts), "determinism"),
    "a count of all episodes": (spec_of(Numbered), "determinism"),
    "a memory of the last task": (spec_of(Remembering), "isolation"),
    "state that is the class's": (spec_of(Shared), "parallel"),
    "artifacts that change when asked": (spec_of(Impatient), "hooks"),
    "a snapshot that forgets": (spec_of(Forgetful), "snapshot"),
    "a snapshot without restore": (spec_of(OneWay), "snapshot"),
    "an index out of range": (spec_of(Indexed), "malformed"),
    "text that cannot be encoded": (spec_of(Encoding), "malformed"),
    "a tool that cannot be cancelled": (spec_of(Unstoppable), "cancel"),
    "a close that fails after a cancelled tool": (spec_of(Jamming), "cancel"),
    "a changed working folder": (spec_of(Wandering), "process"),
    "a changed variable": (spec_of(Exporting), "process"),
    "a changed global random": (spec_of(Seeding), "process"),
    "processes left behind": (spec_of(LeakingProcesses), "leaks"),
    "handles left open": (spec_of(LeakingHandles), "leaks"),
    "files left behind": (spec_of(LeakingFiles), "leaks"),
    "threads left behind": (spec_of(LeakingThreads), "leaks"),
    "memory left behind": (spec_of(LeakingMemory), "leaks"),
    "a reference in the opening": (spec_of(Revealing), "secrets"),
    "a reference that is wrong": (
        spec_of(Vault, reference=lambda index: f"another code {index}"),
        "gold",
    ),
    "an expert that no policy can imitate": (spec_of(Optional), "masks"),
    "data that JSON changes": (
        EnvironmentSpec(
            name="vault",
            environment=Tolerant,
            tasks=tasks_with(extra=(1, 2)).tasks,
            expert=make_expert,
        ),
        "records",
    ),
}
