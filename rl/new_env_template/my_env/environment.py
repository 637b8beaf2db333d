"""The environment: two cards lie face down; turn them over and name the larger.

An episode (`>` is the policy):

    two cards: which is the larger?
    > look(1)                            7
    > look(2)                            12
    > answer(12)                         thank you

Every public method but `reset`, `done` and `artifacts` is a tool: what the policy is told of it is
its name, its types and its docstring.
"""

import random
from collections.abc import Sequence
from pathlib import Path

from envs.environment import EnvironmentSpec, Expert, ToolError
from envs.messages import JsonValue, Message, Role, ToolCall
from envs.task import Task


class MyEnv:
    """One episode. Nothing is shared with other episodes: they run at the same time."""

    def reset(self, cards: list[int]) -> str:
        """Begin; `cards` is the task's `data`. What only the grader may know never comes here."""
        self._cards = cards
        self._answer: int | None = None
        return "two cards: which is the larger?"

    def look(self, card: int) -> str:
        """Turn a card over.

        Args:
            card: 1 or 2.
        """
        if card not in (1, 2):
            # A reply to the policy; whatever else is raised ends the episode without a score.
            raise ToolError("there are the cards 1 and 2")
        return str(self._cards[card - 1])

    def answer(self, number: int) -> str:
        """Name the larger card; this ends the episode.

        Args:
            number: What stands on it.
        """
        self._answer = number
        return "thank you"

    def done(self) -> bool:
        """Whether the answer was given."""
        return self._answer is not None

    def artifacts(self) -> dict[str, JsonValue]:
        """What the grader gets to see."""
        return {"answer": self._answer}


def make_expert(task: Task, source: random.Random) -> Expert:
    """Play as a good policy would: it shows that tasks can be solved, and teaches a warm start."""
    del task, source  # all that an expert may know is in the messages

    def act(messages: Sequence[Message]) -> Message:
        seen = [int(message.text) for message in messages if message.role is Role.TOOL]
        if len(seen) < 2:
            call = ToolCall(name="look", arguments={"card": len(seen) + 1})
        else:
            call = ToolCall(name="answer", arguments={"number": max(seen)})
        return Message(role=Role.POLICY, tool_calls=(call,))

    return act


SPEC = EnvironmentSpec(
    name="my_env",
    environment=MyEnv,
    tasks=Path(__file__).with_name("tasks.jsonl"),
    grader="my_env.grader:grade",
    expert=make_expert,
)
