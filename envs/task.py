"""A task: what is asked of a policy, and what only the grader may know."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from envs.messages import JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task of one environment.

    Worked example:

        Task(id="code_tests/3f2a", environment="code_tests", grader="hidden_tests",
             data={"prompt": "keep those above 4, add 2, sum", "public_tests": [...]},
             reference={"hidden_tests": [...]})

    `data` is passed to the environment's `reset(**data)`; `reference` goes to the grader alone and
    never enters the environment or its sandbox.

    Raises:
        ValueError: an empty id, environment or grader.
    """

    id: str
    """Stable key, unique in its task set; train and held-out splits hash it."""
    environment: str
    """Registered name or dotted path `package.module:Class`."""
    grader: str
    """Registered name or dotted path `package.module:function`."""
    data: Mapping[str, JsonValue] = field(default_factory=dict)
    reference: Mapping[str, JsonValue] = field(default_factory=dict)
    seed: int = 0
    """Seed of the task's own randomness; siblings of a group share it."""

    def __post_init__(self) -> None:
        for name in ("id", "environment", "grader"):
            if not getattr(self, name):
                raise ValueError(f"task {self.id!r}: {name} is empty")
