"""How far two conversations are equal, and what that proves."""

import numpy as np

from rollout.invariance import Invariance, tokens_before_difference


def test_the_first_differing_bit_ends_what_is_equal():
    one = np.array([np.nan, -1.0, -2.0, -3.0], dtype=np.float32)
    other = one.copy()
    assert tokens_before_difference(one, other) == 4
    other[2] = np.nextafter(other[2], np.float32(0))
    assert tokens_before_difference(one, other) == 2
    other[0] = -1.0
    assert tokens_before_difference(one, other) == 0


def test_the_shortest_agreement_is_what_is_proven():
    invariance = Invariance(num_tokens=100, in_company=100, rescored=40, in_pieces=70)
    assert invariance.proven == 40
