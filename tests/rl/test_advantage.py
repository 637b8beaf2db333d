"""Advantages as sums of terms, and the gate that weighs them by what the critic explains."""

import numpy as np
import pytest

from rl.advantage import Rule, Term, combine
from rl.baseline import group_mean, state_group
from rl.mix_weights import Gate
from rl.scale import RunningSquare
from rl.temporal import gae, outcome, reward_to_go

WINDOW = Term(baseline="critic", temporal="gae", lam=0.9)
FULL = Term(baseline="critic", temporal="gae")
OUTCOME = Term(baseline="rloo")


def test_a_sum_of_terms_is_the_sum_of_what_each_says(build_grid):
    grid = build_grid(5)
    episode = Term(baseline="group_mean")
    step = Term(baseline="state_group", temporal="reward_to_go", gamma=0.95, weight=0.5)
    got, _ = combine(grid, [episode, step])
    of_episode = outcome(grid, group_mean(grid))
    of_step = reward_to_go(grid, state_group(grid, 0.95), gamma=0.95)
    assert got == pytest.approx(of_episode + 0.5 * of_step)


def test_a_term_of_weight_zero_needs_nothing_and_learns_nothing(build_grid):
    grid = build_grid(5, outcome_only=True)
    without_critic = type(grid)(
        rewards=grid.rewards,
        lengths=grid.lengths,
        groups=grid.groups,
        final_values=grid.final_values,
    )
    terms = Rule(terms=(WINDOW, FULL, OUTCOME), gate=Gate()).terms_at(None)
    got, running = combine(without_critic, terms)
    assert got == pytest.approx(combine(grid, [OUTCOME])[0])
    assert running == (RunningSquare(),) * 3


@pytest.mark.parametrize(
    ("foresight", "weights"),
    [
        (None, (0.0, 0.0, 0.0, 1.0)),
        (-0.3, (0.0, 0.0, 0.0, 1.0)),
        (0.0, (0.0, 0.0, 0.0, 1.0)),
        (float("nan"), (0.0, 0.0, 0.0, 1.0)),
        (0.1, (0.1, 0.1, 0.8, 0.0)),
        (0.5, (0.5, 0.5, 0.0, 0.0)),
        (0.9, (0.5, 0.5, 0.0, 0.0)),
    ],
)
def test_the_gate_trusts_a_critic_as_far_as_it_foresees_outcomes(foresight, weights):
    assert Gate(target=0.5).weights(foresight, num_windows=2) == pytest.approx(weights)


def test_the_gate_mixes_the_windows(build_grid):
    grid = build_grid(2)
    rule = Rule(terms=(WINDOW, FULL, OUTCOME), gate=Gate(target=0.4))
    got, _ = combine(grid, rule.terms_at(0.1))
    expected = 0.25 * gae(grid, grid.values, 0.9) + 0.75 * gae(grid, grid.values, 1.0)
    assert got == pytest.approx(expected)


def test_each_term_keeps_a_scale_of_its_own(build_grid):
    grid = build_grid(7)
    terms = [
        Term(baseline="critic", temporal="gae", lam=0.5, scale="ema_rms"),
        Term(baseline="critic", temporal="gae", scale="ema_rms", weight=2.0),
    ]
    got, running = combine(grid, terms)
    parts = [gae(grid, grid.values, lam) for lam in (0.5, 1.0)]
    roots = [np.sqrt(np.square(part[grid.mask]).mean()) for part in parts]
    assert [state.root for state in running] == pytest.approx(roots)
    assert got == pytest.approx(parts[0] / roots[0] + 2 * parts[1] / roots[1])


@pytest.mark.parametrize(
    ("piece", "line"),
    [
        ({"baseline": "rlo"}, "baseline = 'rlo': there are none, rloo"),
        ({"baseline": "rloo", "temporal": "td"}, "temporal = 'td'"),
        ({"baseline": "rloo", "scale": "std"}, "scale = 'std'"),
        ({"baseline": "critic", "gamma": 1.5}, "gamma"),
        ({"baseline": "critic", "lam": -0.1}, "lambda"),
        ({"baseline": "group_mean", "temporal": "gae", "lam": 0.9}, "hides the outcome"),
    ],
)
def test_pieces_that_do_not_exist_or_do_not_fit_are_refused(piece, line):
    with pytest.raises(ValueError, match=line):
        Term(**piece)


def test_a_gate_with_fewer_than_three_terms_is_refused():
    with pytest.raises(ValueError, match="three terms"):
        Rule(terms=(WINDOW, FULL), gate=Gate())
    with pytest.raises(ValueError, match="at least one"):
        Rule(terms=())
