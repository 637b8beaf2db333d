"""Names to graders: what a task's `grader` field says."""

from typing import cast

from envs.registry import load_named
from rewards.reward import Grader

ENTRY_POINTS = "limosa.graders"


def load_grader(name: str) -> Grader:
    """Load a grader.

    Args:
        name: Registered name, or dotted path `package.module:function`.

    Raises:
        ValueError: one line: no such name, it cannot be imported, or it leads to no function.
    """
    grader = load_named("grader", ENTRY_POINTS, name)
    if not callable(grader):
        kind = type(grader).__name__
        raise ValueError(f"grader {name!r} is a {kind}, no function")  # noqa: TRY004
    return cast("Grader", grader)
