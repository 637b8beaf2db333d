"""Load of the experts, against counting by hand."""

import torch

from model.expert_load import ExpertLoad


def test_choices_are_counted_per_layer_and_expert():
    expert_ids = torch.tensor([[[0, 1], [3, 2]], [[0, 2], [3, 1]], [[0, 1], [3, 0]]])
    load = ExpertLoad.of(expert_ids.to(torch.int16), num_experts=4)
    assert load.counts.tolist() == [[3, 2, 1, 0], [1, 1, 1, 3]]
    assert load.max_violation() == [1.0, 1.0]
    assert load.num_dead() == [1, 0]


def test_a_choice_that_was_not_recorded_counts_nowhere():
    expert_ids = torch.tensor([[[0, 1]], [[-1, -1]], [[1, 0]]])
    load = ExpertLoad.of(expert_ids, num_experts=2)
    assert load.counts.tolist() == [[2, 2]]
    assert load.max_violation() == [0.0]


def test_loads_add_up_before_they_divide():
    one = ExpertLoad.of(torch.tensor([[[0]]] * 3), num_experts=2)
    other = ExpertLoad.of(torch.tensor([[[1]]] * 3), num_experts=2)
    assert one.max_violation() == other.max_violation() == [1.0]
    assert (one + other).max_violation() == [0.0]
    assert (one + other).num_dead() == [0]


def test_no_token_is_no_imbalance():
    load = ExpertLoad.of(torch.empty(0, 3, 2, dtype=torch.int64), num_experts=4)
    assert load.max_violation() == [0.0] * 3
    assert load.num_dead() == [4] * 3
