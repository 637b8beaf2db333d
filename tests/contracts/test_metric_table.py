"""The one table of metrics is complete: named, with unit, meaning and denominator."""

import re

import pytest

from rl.metrics import METRICS

FOLDERS = ("rl", "rollout", "rewards", "envs", "model", "publish", "time")


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_says_its_unit_its_meaning_and_what_it_is_taken_over(metric):
    assert re.fullmatch(r"[a-z_]+(/[a-z0-9_]+|/\{[a-z]+\})+", metric.name)
    assert metric.name.split("/")[0] in FOLDERS
    assert metric.unit
    assert metric.meaning
    assert metric.over


def test_no_metric_is_declared_twice():
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
