"""Where data and programs that were fetched or derived once are kept between runs."""

import json
import os
import tempfile
from pathlib import Path

from envs.messages import JsonValue


def cache_folder() -> Path:
    """Return `LIMOSA_CACHE`, or `limosa` below the user's cache folder; it may not exist yet."""
    chosen = os.environ.get("LIMOSA_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(chosen) if chosen else (Path(base) if base else Path.home() / ".cache") / "limosa"


def read_cached(path: Path) -> JsonValue:
    """Read a cached value; None where there is none, or none that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_cached(path: Path, value: JsonValue) -> None:
    """Write a value for `read_cached`: whole or not at all, whoever else writes it too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(value, file)
    Path(name).replace(path)
