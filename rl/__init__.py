"""The learner, credit, publishing, runs, and the command line.

The public names of Limosa are here, and loaded when they are first used: `import rl` is light.

    import rl
    config = rl.load_config("configs/quickstart.toml", overrides=["run.steps=4"])
    result = rl.train(config)
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envs.episode import Episode
    from envs.messages import Message
    from envs.task import Task
    from rewards.reward import Scored
    from rl.config import RunConfig
    from rl.config_loader import load_config
    from rl.job import collect, evaluate, train
    from rl.run import RunResult
    from rollout.trajectory import Group, Trajectory

__all__ = [
    "Episode",
    "Group",
    "Message",
    "RunConfig",
    "RunResult",
    "Scored",
    "Task",
    "Trajectory",
    "collect",
    "evaluate",
    "load_config",
    "train",
]

_HOMES = {
    "Episode": "envs.episode",
    "Group": "rollout.trajectory",
    "Message": "envs.messages",
    "RunConfig": "rl.config",
    "RunResult": "rl.run",
    "Scored": "rewards.reward",
    "Task": "envs.task",
    "Trajectory": "rollout.trajectory",
    "collect": "rl.job",
    "evaluate": "rl.job",
    "load_config": "rl.config_loader",
    "train": "rl.job",
}


def __getattr__(name: str) -> object:
    """Load a public name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'rl' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


class _Package(ModuleType):
    """Keeps `rl.train` the public function when the module `rl/train.py` is imported.

    Python binds a submodule to its name in the package; for `train`, `collect` and `evaluate` that
    would hide the function of the same name. The modules stay reachable as `from rl.train import`.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and name in _HOMES):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
