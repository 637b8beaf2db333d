"""What top-p sampling left in the running: laid behind each other, cut, and never lost."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rollout.sampling_mask import SamplingMask

LISTS = st.lists(st.lists(st.integers(0, 30), max_size=4, unique=True), max_size=6)


def lists_of(mask):
    return [part.tolist() for part in np.split(mask.token_ids, mask.lengths.cumsum()[:-1])]


@given(LISTS.filter(len), st.integers(0, 6))
def test_the_first_lists_of_a_mask_and_the_others_are_the_mask(lists, num_tokens):
    mask = SamplingMask.of_lists(lists)
    start = mask.first(num_tokens)
    rest = SamplingMask.of_lists(lists[num_tokens:])
    assert lists_of(SamplingMask.join([start, rest])) == lists
    assert len(start) == min(num_tokens, len(lists))


def test_a_token_outside_of_its_list_is_refused_by_its_index():
    mask = SamplingMask.of_lists([[], [3, 5], [7]])
    mask.require(np.array([99, 5, 7], dtype=np.int32))
    with pytest.raises(ValueError, match="token 1 is not among the 2 it was sampled from"):
        mask.require(np.array([99, 7, 7], dtype=np.int32))


def test_the_token_of_another_list_does_not_count():
    mask = SamplingMask.of_lists([[1], [2]])
    with pytest.raises(ValueError, match="token 0"):
        mask.require(np.array([2, 2], dtype=np.int32))


def test_another_number_of_tokens_is_refused():
    with pytest.raises(ValueError, match="1 tokens, a sampling mask of 2"):
        SamplingMask.whole(2).require(np.array([4], dtype=np.int32))


def test_lengths_that_do_not_add_up_are_refused():
    with pytest.raises(ValueError, match="do not add up to its 1 tokens"):
        SamplingMask(token_ids=np.zeros(1, np.int32), lengths=np.zeros(3, np.int32))
