"""The plan of a run: three worlds take turns by their weights."""

import sys
from collections import Counter

from envs.config import EnvironmentConfig
from envs.environment import EnvironmentSpec
from envs.task import Task
from rl.collect import plan_training
from rl.config import ModelSection, RunConfig


def make_world(name):
    rows = [Task(id=f"{name}/{n}", environment=name, grader="g") for n in range(40)]
    return EnvironmentSpec(name=name, environment=object, tasks=rows)


CODE, READING, MIXED = map(make_world, ("code", "reading", "mixed"))
WEIGHTS = {"CODE": 2.0, "READING": 2.0, "MIXED": 1.0}


def test_three_environments_train_together_by_their_weights(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "three_worlds", sys.modules[__name__])
    config = RunConfig(
        model=ModelSection(checkpoint=tmp_path),
        environments={
            name: EnvironmentConfig(use=f"three_worlds:{name}", weight=weight)
            for name, weight in WEIGHTS.items()
        },
    )
    plan = plan_training(config, 100)
    counts = Counter(group.task.environment for group in plan)
    assert counts == {"code": 40, "reading": 40, "mixed": 20}
    for start in range(0, 100, 20):  # every stretch of it, not only the whole
        part = Counter(group.task.environment for group in plan[start : start + 20])
        assert abs(part["code"] - 8) <= 1
        assert abs(part["mixed"] - 4) <= 1
    assert [group.task.id for group in plan] == [g.task.id for g in plan_training(config, 100)]
