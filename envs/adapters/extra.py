"""Packages that only adapters need: asked for by name, with a line that says how to get them."""

import importlib.util


def require_package(name: str) -> None:
    """Make sure that an adapter's package is there, before it is imported.

    Raises:
        ValueError: one line: it is not installed.
    """
    if importlib.util.find_spec(name) is None:
        raise ValueError(f"the package {name} is not installed: pip install 'limosa[adapters]'")
