"""The published shape counts up to the published figures."""

import subprocess
import sys

import pytest

from model.accounting import account
from model.hybrid import build_model
from model.presets import k3, tiny


@pytest.fixture(scope="module")
def figures():
    return account(k3())


def test_parameters_of_k3_are_those_published(figures):
    assert round(figures.parameters / 1e12, 2) == 2.78
    assert round(figures.active_parameters / 1e9, 1) == 104.2


def test_tensors_of_k3_are_those_published(figures):
    """497,220 in all, 168 of them of the vision tower; routed experts are stored packed."""
    assert figures.tensors + figures.routed_tensors == 497_220 - 168
    assert figures.routed_tensors == 92 * 896 * 3


def test_bytes_of_k3_are_those_published(figures):
    """The published size, 1,560,860,324,864 bytes, also has a vision tower of 0.4 billion."""
    packed = figures.routed_parameters * (4 + 8 / 32) / 8
    rest = 2 * (figures.parameters - figures.routed_parameters)
    assert 0 < 1_560_860_324_864 - packed - rest < 1e9


def test_cache_of_k3_is_that_published(figures):
    assert figures.memory_bytes == 69 * 6 * 2**20
    assert round(figures.tail_bytes / 2**20, 1) == 14.6
    assert figures.latent_bytes_per_token == 27_648


def test_a_model_with_memory_counts_the_same():
    state = build_model(tiny(), seed=0).state_dict()
    figures = account(tiny())
    assert figures.parameters == sum(tensor.numel() for tensor in state.values())
    assert figures.tensors == len(state)
    assert figures.routed_tensors == 3 * 8 * 3


def test_the_table_is_printed_and_an_unknown_preset_refused():
    command = [sys.executable, "-m", "model.accounting"]
    table = subprocess.run([*command, "tiny"], capture_output=True, text=True, check=True).stdout
    assert "tiny    parameters                           1,356,964" in table
    assert subprocess.run([*command, "huge"], capture_output=True, check=False).returncode == 2
