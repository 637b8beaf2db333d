"""The verbs of the command line exist and teach their use."""

import subprocess
import sys

import pytest

VERBS = (
    "train",
    "warm-start",
    "collect",
    "eval",
    "compare",
    "show",
    "check",
    "export",
    "bench",
    "doctor",
)


def limosa(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rl", *arguments], capture_output=True, text=True, check=False
    )


def test_help_lists_every_verb():
    result = limosa("--help")
    assert result.returncode == 0
    assert [verb for verb in VERBS if verb not in result.stdout] == []


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_explains_itself_and_offers_json(verb):
    result = limosa(verb, "--help")
    assert result.returncode == 0, result.stderr
    assert "--json" in result.stdout or verb == "bench"


def test_an_unknown_verb_is_bad_input():
    result = limosa("trian")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
