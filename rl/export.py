"""From a run to a Hugging Face folder: what `limosa export` does.

Checkpoints of a run already have that form (config.json, model.safetensors, tokenizer.json), so an
export is a verified copy under a name of the user's choice.
"""

import shutil
from pathlib import Path

from rl.checkpoint_files import CHECKPOINT_FILES, check_checkpoint
from rl.run import Run


def export_checkpoint(run: Run, target: Path, step: int | None = None) -> Path:
    """Copy a checkpoint of a run to the new folder `target`.

    Args:
        run: the run.
        target: a folder that does not exist, or is empty.
        step: which checkpoint; None is the last one.

    Returns:
        The folder of the checkpoint that was copied.

    Raises:
        ValueError: the run has no such checkpoint, the checkpoint is damaged, or `target` holds
            files.
    """
    checkpoints = run.checkpoints()
    if not checkpoints:
        raise ValueError(f"{run.folder} has no checkpoint yet")
    chosen = max(checkpoints) if step is None else step
    if chosen not in checkpoints:
        known = ", ".join(map(str, checkpoints))
        raise ValueError(f"{run.folder} has no checkpoint of step {chosen}, only of {known}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} exists and is not an empty folder: choose another name")
    source = checkpoints[chosen]
    check_checkpoint(source)
    target.mkdir(parents=True, exist_ok=True)
    for name in CHECKPOINT_FILES:
        shutil.copyfile(source / name, target / name)
    return source
