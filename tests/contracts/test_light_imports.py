"""What a laptop needs to read a configuration loads no tensor library."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "ray", "vllm", "transformers", "triton", "trl")
LIGHT_MODULES = (
    "rl",
    "rl.config",
    "rl.config_loader",
    "rl.cli",
    "rollout.config",
    "rollout.trajectory",
    "rollout.tokenizer",
    "rollout.renderer",
    "model.config",
    "model.presets",
    "model.vllm_plugin",
    "envs.code_tests",
    "envs.retrieval",
    "rewards.hidden_tests",
    "rewards.cited_answer",
)


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_importing_it_loads_no_tensor_library(module):
    code = f"import sys, {module}; print(*(m for m in {HEAVY!r} if m in sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == []


def test_the_command_line_helps_without_a_tensor_library():
    code = (
        "import sys\nfrom rl.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print('loaded:', *(m for m in {HEAVY!r} if m in sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "loaded:"
