"""What a user gave is found wanting inside an actor.

Between processes an error keeps its type and its text but not its traceback, by which the caller
could tell our own ValueErrors, which speak of input, from those of a library, which are faults of
the system. So the ones that a user can mend have a type of their own.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """A task, an environment or a checkpoint cannot be used; one line that says how to mend it."""


@contextmanager
def about_input() -> Iterator[None]:
    """Type the ValueErrors of a loader, all of which speak of what the user named."""
    try:
        yield
    except ValueError as error:
        raise InputError(str(error)) from error
