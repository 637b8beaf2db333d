"""The environment is sound: `limosa check run.toml` says more."""

import asyncio

from envs.registry import load_environment
from rewards.check import prove

NAME = "my_env.environment:SPEC"


def test_the_environment_is_sound() -> None:
    """Each check passes; a failure names what is wrong."""
    proof = asyncio.run(prove(load_environment(NAME)))
    assert [(failed.name, failed.details) for failed in proof.failures] == []
