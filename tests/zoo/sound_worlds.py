"""Three small sound environments: tools and a grader, a class for TRL, a text game."""

from envs.environment import EnvironmentSpec
from envs.messages import Message, Role, ToolCall
from envs.soundness import play_actions
from envs.task import Task
from envs.task_sets import split_of
from rewards.reward import Scored

NUM_TASKS = 12


class Vault:
    """Read the note, enter the code that stands on it."""

    def __init__(self):
        self.entered = None

    def reset(self, name, code):
        self.code = code
        return f"open the vault of {name}"

    def read_note(self) -> str:
        """Read the note beside the vault."""
        return f"the code is {self.code}"

    def enter(self, code: str) -> str:
        """Enter a code; there is one try.

        Args:
            code: The code.
        """
        self.entered = code
        return "entered"

    def done(self):
        return self.entered is not None

    def artifacts(self):
        return {"entered": self.entered}

    def snapshot(self):
        return self.entered

    def restore(self, state):
        self.entered = state


async def grade(episode):
    is_right = episode.artifacts.get("entered") == episode.task.reference["code"]
    return Scored(value=float(is_right))


def code_of(index):
    return f"code-{index * 7919 % 9973:04}-{index:04}"


def make_tasks(split, grader="sound_worlds:grade", reference=code_of):
    tasks = [
        Task(
            id=f"vault/{index}",
            environment="vault",
            grader=grader,
            data={"name": f"number {index}", "code": code_of(index)},
            reference={"code": reference(index)},
        )
        for index in range(NUM_TASKS)
    ]
    return [task for task in tasks if split_of(task.id) is split]


def act(name, **arguments):
    return Message(role=Role.POLICY, tool_calls=(ToolCall(name=name, arguments=arguments),))


def make_expert(task, source):
    return play_actions([act("read_note"), act("enter", code=task.data["code"])])


class Dice:
    """Written for TRL: rows arrive by name, the class owns its reward, errors are told."""

    def reset(self, **row):
        self.wanted = row["wanted"]
        self.is_right = False

    def add(self, numbers: list[int], how: str = "plain") -> dict:
        """Give numbers that add up to what is wanted.

        Args:
            numbers: Three numbers from 1 to 6.
            how: Anything.
        """
        if len(numbers) != 3:
            raise ValueError("three numbers, please")
        self.is_right = sum(numbers) == self.wanted
        return {"sum": sum(numbers)}

    def get_reward(self):
        return 1.0 if self.is_right else 0.0


DICE_ROWS = [{"wanted": wanted, "prompt": f"make {wanted} of three"} for wanted in range(3, 19)]


def roll(task, source):
    base, rest = divmod(task.data["wanted"], 3)
    return play_actions([act("add", numbers=[base + (place < rest) for place in range(3)])])


class Parrot:
    """A text game: say the word backwards."""

    def reset(self, word: str) -> str:
        self.word, self.said = word, ""
        return f"backwards, please: {word}"

    async def step(self, text: str) -> str:
        self.said = text
        return "right" if self.reward() else "no"

    def done(self) -> bool:
        return self.reward() == 1.0

    def reward(self) -> float:
        return float(self.said == self.word[::-1])

    def snapshot(self):
        return {"said": self.said}

    async def restore(self, state):
        self.said = state["said"]


WORDS = ["gallium", "radon", "tin", "neon", "iron", "zinc", "boron", "argon", "cobalt", "nickel"]


def speak(task, source):
    word = task.data["word"]
    return play_actions([Message(role=Role.POLICY, text=text) for text in (word, word[::-1])])


SOUND = {
    "vault": EnvironmentSpec(name="vault", environment=Vault, tasks=make_tasks, expert=make_expert),
    "dice": EnvironmentSpec(name="dice", environment=Dice, tasks=DICE_ROWS, expert=roll),
    "parrot": EnvironmentSpec(
        name="parrot",
        environment=Parrot,
        tasks=[{"id": f"parrot/{word}", "word": word} for word in WORDS],
        expert=speak,
    ),
}
