"""The verbs of the command line exist and teach their use."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

VERBS = (
    *("train", "warm-start", "collect", "eval", "compare", "show", "check"),
    *("new-env", "export", "bench", "doctor"),
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


def test_the_help_of_check_and_the_readme_name_every_check():
    from envs.check import ENVIRONMENT_CHECKS
    from rewards.check import CHECKS
    from rollout.check import token_checks
    from rollout.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(ROOT / "configs" / "quickstart-checkpoint")
    checks = (*ENVIRONMENT_CHECKS, *CHECKS, *token_checks(tokenizer))
    told = [f"  {check.name:<12} {check.rule}" for check in checks]
    assert "\n".join(told) in limosa("check", "--help").stdout
    rows = [f"| {check.name} | {check.rule} |" for check in checks]
    assert "\n".join(rows) in (ROOT / "envs" / "README.md").read_text()
