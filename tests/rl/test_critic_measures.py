"""What is measured of a critic, on grids small enough to compute by hand."""

import numpy as np
import pytest

from rl.critic_measures import measure_calibration, measure_explained, measure_recognition
from rl.turn_grid import TurnGrid


def grid_of(values, outcomes):
    values = np.array(values, dtype=float)
    rewards = np.zeros(values.shape)
    rewards[:, -1] = outcomes
    return TurnGrid(
        rewards=rewards,
        lengths=np.full(len(values), values.shape[1]),
        groups=np.zeros(len(values), dtype=np.int64),
        final_values=np.zeros(len(values)),
        values=values,
    )


def test_a_critic_that_knows_explains_all_and_a_constant_nothing():
    outcomes = [1.0, 0.0]
    assert measure_explained(grid_of([[1, 1], [0, 0]], outcomes)) == pytest.approx(1.0)
    assert measure_explained(grid_of([[0.5, 0.5]] * 2, outcomes)) == pytest.approx(0.0)
    assert measure_explained(grid_of([[0, 0], [1, 1]], outcomes)) == pytest.approx(-3.0)


def test_equal_outcomes_leave_nothing_to_explain():
    assert measure_explained(grid_of([[0.3, 0.9]] * 2, [1.0, 1.0])) is None


def test_calibration_is_the_distance_of_values_from_how_often_they_come_true():
    half = [[0.5], [0.5], [0.5], [0.5]]
    assert measure_calibration(grid_of(half, [1, 0, 1, 0])) == pytest.approx(0.0)
    assert measure_calibration(grid_of(half, [1, 1, 1, 0])) == pytest.approx(0.25)
    # Two bins: .1 comes true half of the time, .9 always.
    values = [[0.1], [0.1], [0.9], [0.9]]
    assert measure_calibration(grid_of(values, [1, 0, 1, 1])) == pytest.approx(0.25)


def test_recognition_is_when_half_of_the_first_surprise_is_gone_for_good():
    soon = [0.5, 0.9, 0.9, 0.9]
    late = [0.5, 0.9, 0.4, 0.9]
    never = [0.5, 0.5, 0.5, 0.5]
    knew = [0.95, 0.1, 0.1, 0.1]
    assert measure_recognition(grid_of([soon], [1.0])) == pytest.approx(1 / 4)
    assert measure_recognition(grid_of([late], [1.0])) == pytest.approx(3 / 4)
    assert measure_recognition(grid_of([never], [1.0])) == pytest.approx(1.0)
    assert measure_recognition(grid_of([soon, never, knew], [1.0] * 3)) == pytest.approx(0.625)
    assert measure_recognition(grid_of([knew], [1.0])) is None
