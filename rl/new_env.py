"""A new environment as a package: `limosa new-env NAME` copies a working one under another name.

What is copied stands in `new_env_template/`: real files, of which the name `my_env`, its class
`MyEnv` and the checkpoint are replaced.
"""

import importlib.util
import keyword
import re
from pathlib import Path

TEMPLATE = Path(__file__).parent / "new_env_template"
QUICKSTART_CHECKPOINT = Path(__file__).parents[1] / "configs" / "quickstart-checkpoint"


def write_package(name: str, parent: Path, checkpoint: Path | None = None) -> list[Path]:
    """Write a package that passes `limosa check` and trains at once.

    Args:
        name: Of the package, of its environment and of its folder: a Python identifier.
        parent: Where the folder is made.
        checkpoint: The policy of its run; None is the one of the quickstart.

    Returns:
        The files written.

    Raises:
        ValueError: one line: no such name is possible, the folder exists, or no checkpoint.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ValueError(f"{name!r} can be no package: use small letters, digits and _")
    folder = parent / name
    if folder.exists():
        raise ValueError(f"{folder} exists: choose another name, or remove it")
    if importlib.util.find_spec(name) is not None:
        raise ValueError(f"a package {name!r} is installed already: choose another name")
    checkpoint = (checkpoint or QUICKSTART_CHECKPOINT).absolute()
    if not checkpoint.is_dir():
        raise ValueError(f"no checkpoint folder {checkpoint}: name one with --checkpoint")
    replacements = {
        "my_env": name,
        "MyEnv": "".join(part.capitalize() for part in name.split("_")),
        "CHECKPOINT": str(checkpoint),
    }
    written = []
    for source in sorted(TEMPLATE.rglob("*")):
        if source.is_dir() or "__pycache__" in source.parts:
            continue
        target = folder / _replace(str(source.relative_to(TEMPLATE)), replacements)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = _replace(source.read_text(encoding="utf-8"), replacements)
        target.write_text(text, encoding="utf-8")
        written.append(target)
    return written


def _replace(text: str, replacements: dict[str, str]) -> str:
    for old, new in replacements.items():
        text = text.replace(old, new)
    return text
