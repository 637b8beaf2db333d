from rl.doctor import FOLDERS, Verdict, available_memory_gib, examine


def test_it_finds_this_machine_and_our_packages():
    facts = {fact.name: fact for fact in examine()}
    assert facts["python"].verdict is Verdict.GOOD
    for name in ("torch", "ray", "transformers", "trl"):
        assert facts[name].value.startswith(name)
    for folder in FOLDERS:
        assert facts[f"package {folder}"].verdict is Verdict.GOOD
    assert "sandbox" in facts
    for fact in facts.values():
        assert fact.advice or fact.verdict is Verdict.GOOD


def test_free_memory_is_plausible():
    assert 0.0 < available_memory_gib() < 100_000
