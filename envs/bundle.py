"""Several files as one program text, so that a function of theirs can be called in a sandbox.

Takes submitted files, returns a text for `call_function`: it writes the files where it runs,
imports the module, and defines `call(arguments)`, which passes a dict on as keyword arguments.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath

CALL = "call"
"""Name of the function that a bundle defines."""
MAX_BUNDLE_BYTES = 1 << 18

_PROGRAM = """
import os, sys
for path, text in {files!r}:
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
sys.dont_write_bytecode = True
sys.path.append(os.getcwd())
from {module} import {function} as _function

def {call}(arguments):
    return _function(**arguments)
"""


def bundle(files: Mapping[str, str], module: str, function: str) -> str:
    """Make one program of some files.

    Args:
        files: Relative path to text.
        module: Dotted name of the module that has the function; the standard library comes first.
        function: Name of the function.

    Raises:
        ValueError: the files are too large together, or a path leads out of their folder.
    """
    if sum(len(path) + len(text) for path, text in files.items()) > MAX_BUNDLE_BYTES:
        raise ValueError(f"the files have more than {MAX_BUNDLE_BYTES} characters together")
    for path in files:
        if path.startswith("/") or ".." in PurePosixPath(path).parts or "\0" in path:
            raise ValueError(f"{path[:80]!r} is no path below a folder")
    return _PROGRAM.format(files=[*files.items()], module=module, function=function, call=CALL)
