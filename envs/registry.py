"""Names to code: environments (and, for `rewards`, graders) that a file names.

A name is registered by an entry point, or is a dotted path `package.module:ATTRIBUTE` to an
installed package or to a module in the working folder.
"""

import difflib
import importlib
import importlib.metadata
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from envs.environment import EnvironmentSpec

ENTRY_POINTS = "limosa.environments"


def load_environment(name: str) -> EnvironmentSpec:
    """Load an environment.

    Args:
        name: Registered name, or dotted path to an `EnvironmentSpec` or to a class; the tasks of a
            bare class are those that its section names.

    Raises:
        ValueError: one line: no such name, it cannot be imported, or it leads to something else.
    """
    spec = load_named("environment", ENTRY_POINTS, name)
    if isinstance(spec, type) and callable(getattr(spec, "reset", None)):
        return EnvironmentSpec(name=name, environment=spec, tasks=())
    if not isinstance(spec, EnvironmentSpec):
        kind = type(spec).__name__
        message = f"environment {name!r} is a {kind}, no EnvironmentSpec and no class with reset"
        raise ValueError(message)  # noqa: TRY004
    return spec


def load_named(kind: str, group: str, name: str) -> object:
    """Load what an entry point or a dotted path leads to.

    Args:
        kind: What is looked for, for the message: `environment`.
        group: Entry-point group.
        name: Registered name, or dotted path.

    Raises:
        ValueError: one line: no such name, or it cannot be imported.
    """
    registered = _registered(group)
    path = registered.get(name, name)
    module_name, colon, attribute = path.partition(":")
    if not (module_name and colon and attribute):
        close = difflib.get_close_matches(name, registered, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        known = ", ".join(sorted(registered))
        raise ValueError(
            f"no {kind} {name!r}{hint}; known: {known}, or a path `package.module:NAME`"
        )
    # Last, so that nothing in the working folder can stand in for an installed package.
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (Exception, SystemExit) as error:  # the module is foreign code: it may raise anything
        line = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"{kind} {name!r} cannot be loaded: {line}") from error


@cache  # a walk over all installed packages, and every episode names a grader
def _registered(group: str) -> Mapping[str, str]:
    """Names of an entry-point group, and where they lead."""
    return {point.name: point.value for point in importlib.metadata.entry_points(group=group)}
