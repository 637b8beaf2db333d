"""How far two conversations are equal, and what that proves."""

import numpy as np

from rollout.invariance import Invariance, Played, tokens_before_difference


def test_the_first_differing_bit_ends_what_is_equal():
    one = np.array([np.nan, -1.0, -2.0, -3.0], dtype=np.float32)
    other = one.copy()
    assert tokens_before_difference(one, other) == 4
    other[2] = np.nextafter(other[2], np.float32(0))
    assert tokens_before_difference(one, other) == 2
    other[0] = -1.0
    assert tokens_before_difference(one, other) == 0


def test_the_shortest_agreement_is_what_is_proven():
    lengths = {"in_company": 100, "rescored": 100, "in_pieces": 100, "trained": 100}
    for name in lengths:
        assert Invariance(num_tokens=100, **lengths | {name: 40}).proven == 40


def test_only_sampled_tokens_count():
    logprobs = np.array([np.nan, -1.0, np.nan, -3.0], dtype=np.float32)
    played = Played(np.arange(4, dtype=np.int32), logprobs)
    scores = np.array([-9.0, -1.0, -9.0, -3.0], dtype=np.float32)
    assert played.tokens_before_difference_to(scores) == 4
    scores[3] = np.nextafter(scores[3], np.float32(0))
    assert played.tokens_before_difference_to(scores) == 3
