"""What the tests of the model share."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def oracle():
    """The architecture written down a second time: `oracle.py` beside this file."""
    spec = importlib.util.spec_from_file_location("oracle", Path(__file__).parent / "oracle.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
