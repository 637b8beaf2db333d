from hypothesis import given, strategies as st

from rollout.seeds import derive_seed


def test_a_seed_is_the_same_on_every_machine():
    assert derive_seed("turn", 0, "code_tests/3f2a", 5, 3, 2) == derive_seed(
        "turn", 0, "code_tests/3f2a", 5, 3, 2
    )
    assert derive_seed("a") == 5747026578550324724


@given(st.lists(st.one_of(st.text(), st.integers()), min_size=1), st.integers(0, 5))
def test_every_name_counts_and_seeds_fit_in_63_bits(names, extra):
    seed = derive_seed(*names)
    assert 0 <= seed < 2**63
    assert seed != derive_seed(*names, extra)


def test_a_number_and_its_spelling_are_different_names():
    assert derive_seed(1) != derive_seed("1")
    assert derive_seed("a", "b") != derive_seed("ab")
