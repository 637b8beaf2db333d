"""What is measured of a critic, on grids small enough to compute by hand."""

import numpy as np
import pytest

from rl.critic_measures import measure_calibration, measure_recognition
from rl.mix_weights import Errors
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


def explained(grid):
    return Errors.of(grid).explained_variance


def test_a_critic_that_knows_explains_all_and_a_constant_nothing():
    outcomes = [1.0, 0.0]
    assert explained(grid_of([[1, 1], [0, 0]], outcomes)) == pytest.approx(1.0)
    assert explained(grid_of([[0.5, 0.5]] * 2, outcomes)) == pytest.approx(0.0)
    assert explained(grid_of([[0, 0], [1, 1]], outcomes)) == pytest.approx(-3.0)


def test_equal_outcomes_leave_nothing_to_explain():
    assert explained(grid_of([[0.3, 0.9]] * 2, [1.0, 1.0])) is None


def test_a_step_whose_outcomes_hardly_differ_has_little_say_in_what_is_explained():
    known = Errors.of(grid_of([[0.9], [0.1]] * 8, [1.0, 0.0] * 8))
    odd = Errors.of(grid_of([[0.9]] * 16, [1.0] * 15 + [0.0]))
    assert known.explained_variance == pytest.approx(0.96)
    assert odd.explained_variance == pytest.approx(0.0)
    wrong = Errors.of(grid_of([[0.6]] * 15 + [[1.0]], [1.0] * 15 + [0.0]))
    assert wrong.explained_variance == pytest.approx(-0.96, abs=1e-3)
    # The mean of the two would be 0.
    assert (known + wrong).explained_variance == pytest.approx(0.595, abs=1e-3)
    assert (known.faded(0.5) + known).explained_variance == pytest.approx(0.96)


def test_what_one_number_for_all_turns_would_mend_is_no_fault_of_the_critic():
    outcomes = [1.0, 0.0, 1.0, 0.0]
    right = grid_of([[0.5, 0.9], [0.5, 0.1]] * 2, outcomes)
    high = grid_of([[0.7, 1.1], [0.7, 0.3]] * 2, outcomes)
    assert explained(high) == pytest.approx(explained(right))


def test_foresight_is_what_the_critic_knew_of_what_it_knows_at_the_end():
    """A coin of one half on top of what is known: it is in both, and cancels."""
    early, late = [[0.75, 0.75], [0.25, 0.25]], [[0.5, 0.75], [0.5, 0.25]]
    outcomes = [1.0] * 3 + [0.0] + [1.0] + [0.0] * 3
    at_once = Errors.of(grid_of([early[0]] * 4 + [early[1]] * 4, outcomes))
    at_last = Errors.of(grid_of([late[0]] * 4 + [late[1]] * 4, outcomes))
    assert at_once.explained_variance == pytest.approx(0.25)
    assert at_once.foresight == pytest.approx(1.0)
    assert at_last.explained_variance == pytest.approx(0.125)
    assert at_last.foresight == pytest.approx(0.5)
    # Sums of 4 and 8, half and all of them: EV is (0.25 / 2 + 0.125) / 1.5, at the end it is 0.25.
    assert (at_once.faded(0.5) + at_last).foresight == pytest.approx(2 / 3)


def test_a_critic_that_forgets_foresees_no_more_than_all():
    forgetful = Errors.of(grid_of([[1.0, 0.5], [0.0, 0.5]], [1.0, 0.0]))
    assert forgetful.explained_variance == pytest.approx(0.5)
    assert forgetful.foresight == pytest.approx(1.0)


def test_a_critic_worse_than_a_constant_foresees_nothing():
    worse = Errors.of(grid_of([[0.0, 0.0], [1.0, 1.0]], [1.0, 0.0]))
    assert worse.foresight == worse.explained_variance < 0
    assert Errors().foresight is None


def test_a_step_with_equal_outcomes_still_counts_what_the_critic_missed():
    known = Errors.of(grid_of([[1.0], [0.0]], [1.0, 0.0]))
    equal = Errors.of(grid_of([[1.0], [0.0]], [1.0, 1.0]))
    assert equal.explained_variance is None
    assert (known + equal).explained_variance == pytest.approx(0.0)


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
