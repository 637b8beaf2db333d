"""The twelve public names of `rl`."""

import importlib
import inspect

import rl


def test_every_public_name_loads():
    assert len(rl.__all__) <= 12
    for name in rl.__all__:
        assert inspect.isclass(getattr(rl, name)) or callable(getattr(rl, name))


def test_importing_a_module_does_not_hide_the_function_of_its_name():
    importlib.import_module("rl.metrics")
    importlib.import_module("rl.evaluate")
    assert inspect.ismodule(rl.metrics)
    assert inspect.isfunction(rl.evaluate)
