"""Aggregations: the loss of a step written out, and which of them weigh by length."""

import numpy as np
import pytest

from rl.aggregation import AGGREGATIONS

LOSSES = [[1.0, 3.0], [2.0], [0.0, 4.0, 8.0, 0.0]]
GROUPS = np.array([7, 7, 9])
MOST = 10


def aggregate(name):
    weights, denominator = AGGREGATIONS[name](np.array([2, 1, 4]), GROUPS, MOST)
    return sum(w * sum(row) for w, row in zip(weights, LOSSES, strict=True)) / denominator


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token_mean", 18 / 7),
        ("token_sum_const", 18 / 30),
        ("seq_mean_token_mean", (2 + 2 + 3) / 3),
        ("seq_mean_token_sum", (4 + 2 + 12) / 3),
        ("prompt_mean", (6 / 3 + 12 / 4) / 2),
    ],
)
def test_an_aggregation_equals_its_formula(name, expected):
    assert aggregate(name) == pytest.approx(expected)


def test_the_names_are_those_of_the_formulas():
    assert set(AGGREGATIONS) == {
        *("token_mean", "token_sum_const", "seq_mean_token_mean", "seq_mean_token_sum"),
        "prompt_mean",
    }


@pytest.mark.parametrize("name", ["token_mean", "token_sum_const", "seq_mean_token_sum"])
def test_a_token_weighs_the_same_in_a_long_and_a_short_trajectory(name):
    weights, _ = AGGREGATIONS[name](np.array([1, 100]), np.array([0, 1]), 200)
    assert weights[0] == weights[1]
