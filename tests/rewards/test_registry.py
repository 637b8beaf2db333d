"""Names to graders."""

import pytest

from rewards import cited_answer
from rewards.registry import load_grader


def test_a_grader_is_found_by_its_registered_name_and_by_its_path():
    assert load_grader("cited_answer") is cited_answer.grade
    assert load_grader("rewards.cited_answer:grade") is cited_answer.grade


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hidden_test", r"no grader 'hidden_test' \(did you mean 'hidden_tests'\?\)"),
        ("rewards.hidden_tests:LIMITS", "is a SandboxLimits, no function"),
        ("rewards.nothing:grade", "cannot be loaded: ModuleNotFoundError"),
    ],
)
def test_a_wrong_name_is_one_line(name, message):
    with pytest.raises(ValueError, match=message):
        load_grader(name)
