"""Code of the user, named in a configuration as `package.module:name`."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any


def load_attribute(key: str, path: str, known: Sequence[str] = ()) -> Callable[..., Any]:
    """Import the function that a configuration names.

    Args:
        key: Address of the field, for the message: `loss.type`.
        path: `package.module:name`; the package may lie in the working folder.
        known: Names that need no path, for the message.

    Returns:
        The function.

    Raises:
        ValueError: the path has another form, cannot be imported, or names no function.
    """
    module_name, colon, name = path.partition(":")
    if not (module_name and colon and name):
        names = ", ".join(known)
        raise ValueError(f"{key} = {path!r} is neither one of {names} nor `package.module:name`")
    try:
        function = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{key} = {path!r} cannot be imported: {error}") from error
    if callable(function):
        return function
    raise ValueError(f"{key} = {path!r} is a {type(function).__name__}, not a function")
