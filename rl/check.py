"""Is a run sound before it costs anything? Takes a configuration, returns findings.

`check_ready` looks at what a run needs to start at all: checkpoint, tasks, graders, context,
memory, Ray. `check_run` also proves the environments sound (rewards/check.py, rollout/check.py).
Neither loads torch.
"""

import asyncio
import json
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from envs.config import EnvironmentConfig
from envs.environment import EnvironmentFailure, Split, end_episode, start_episode
from envs.registry import load_environment
from envs.soundness import CheckLimits, Soundness
from envs.task import Task
from envs.task_sets import load_tasks
from model.config import ModelConfig
from rewards.check import prove
from rewards.registry import load_grader
from rl.checkpoint_files import check_checkpoint
from rl.config import RunConfig
from rl.config_loader import ConfigError
from rl.doctor import available_memory_gib
from rl.dotted_path import load_attribute
from rl.effort_budget import EffortBudget
from rl.presets import require_trainable, resolve
from rollout.cache_plan import check_cache, plan_cache
from rollout.check import token_checks
from rollout.config import RolloutConfig
from rollout.engine import EngineError
from rollout.renderer import count_opening_tokens
from rollout.sub_agent import offered_tools
from rollout.tokenizer import Tokenizer

NUM_OPENINGS = 64
"""Openings measured per environment and split."""
ENGINE_GIB = 1.0
"""Memory of an engine beside its caches: the interpreter, torch and vLLM."""
CONNECT_SECONDS = 5.0


class Verdict(StrEnum):
    """What a finding means."""

    GOOD = "good"
    ERROR = "error"
    """The run would fail, or would measure nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    """Address in the configuration."""
    text: str
    verdict: Verdict = Verdict.GOOD


def require_ready(config: RunConfig) -> None:
    """Check that a run can start.

    Raises:
        ConfigError: it cannot; the message is the first finding, and how many there are.
    """
    errors = [finding for finding in check_ready(config) if finding.verdict is Verdict.ERROR]
    if errors:
        others = f" (and {len(errors) - 1} more: `limosa check`)" if len(errors) > 1 else ""
        raise ConfigError(f"{errors[0].subject}: {errors[0].text}{others}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCheck:
    """All that was looked at."""

    findings: Sequence[Finding]
    """Of what the run needs to start."""
    environments: Mapping[str, Soundness]
    """Of each environment; empty where the run could not start."""

    @property
    def num_errors(self) -> int:
        """Errors among the findings, and checks that failed."""
        errors = sum(finding.verdict is Verdict.ERROR for finding in self.findings)
        return errors + sum(len(proof.failures) for proof in self.environments.values())


def check_run(config: RunConfig, num_tasks: int = 4) -> RunCheck:
    """Look at everything that can be looked at without an engine.

    Args:
        config: a validated configuration.
        num_tasks: tasks of each split of an environment that are played.
    """
    findings = check_ready(config)
    if any(finding.verdict is Verdict.ERROR for finding in findings):
        return RunCheck(findings=findings, environments={})
    checks = token_checks(Tokenizer.load(config.model.checkpoint))
    # Episodes as long as the run's: where its experts need them all, shorter ones show no solution.
    max_turns = max(CheckLimits().max_turns, config.rollout.max_turns)
    proofs = {
        name: asyncio.run(
            prove(
                load_environment(section.use or name),
                section.model_copy(update={"use": section.use or name}),
                CheckLimits(num_tasks=num_tasks, max_turns=max_turns),
                checks,
            )
        )
        for name, section in config.environments.items()
    }
    return RunCheck(findings=findings, environments=proofs)


def check_ready(config: RunConfig) -> list[Finding]:
    """Look at what a run needs to start: a second or two."""
    findings = [
        _try("model.checkpoint", lambda: _check_checkpoint(config)),
        _try("rollout.kv_cache_mib", lambda: _check_memory(config)),
        _try("rollout.ray_address", lambda: _check_ray(config.rollout.ray_address)),
        _try("credit.type", lambda: _check_recipe(config)),
    ]
    if _is_good(findings[0]):
        findings.append(_try("rollout.max_concurrent_episodes", lambda: _check_cache(config)))
    tokenizer = Tokenizer.load(config.model.checkpoint) if _is_good(findings[0]) else None
    for name, section in config.environments.items():
        for split in Split:
            findings += _check_tasks(name, section, split, tokenizer, config.rollout)
    return findings


def _is_good(finding: Finding) -> bool:
    return finding.verdict is Verdict.GOOD


def _try(subject: str, look: Callable[[], str]) -> Finding:
    """Turn the text that `look` returns, or the ValueError that it raises, into a finding."""
    try:
        return Finding(subject=subject, text=look())
    except ValueError as error:
        return Finding(subject=subject, text=" ".join(str(error).split()), verdict=Verdict.ERROR)


def _check_checkpoint(config: RunConfig) -> str:
    check_checkpoint(config.model.checkpoint)
    return f"{config.model.checkpoint}: complete"


def _check_recipe(config: RunConfig) -> str:
    """Say what credit and loss come to; code of the user's own is imported."""
    recipe = resolve(config.credit, config.loss)
    require_trainable(recipe, config.credit, config.critic)
    for key, name in (("credit.type", config.credit.type), ("loss.type", config.loss.type)):
        if name is not None and ":" in name:
            load_attribute(key, name)
    for folder in config.distillation.teachers.values():
        check_checkpoint(folder)
    EffortBudget.load(config.credit)
    own = ", its terms by that rule" if ":" in config.credit.type else ""
    return f"{config.credit.type}: {recipe.describe()}{own}"


def _check_memory(config: RunConfig) -> str:
    rollout = config.rollout
    wanted = rollout.num_engines * (rollout.kv_cache_mib / 1024 + ENGINE_GIB)
    free = available_memory_gib()
    # Engines of a cluster live on other machines: only what starts here is counted.
    if rollout.ray_address == "local" and wanted > free:
        raise ValueError(
            f"{rollout.num_engines} engine(s) with {rollout.kv_cache_mib} MiB want {wanted:.1f} "
            f"GiB, but {free:.1f} GiB are free: lower rollout.kv_cache_mib or rollout.num_engines"
        )
    return f"engines want {wanted:.1f} GiB, {free:.1f} GiB are free"


def _check_cache(config: RunConfig) -> str:
    values = json.loads((config.model.checkpoint / "config.json").read_text(encoding="utf-8"))
    plan = plan_cache(ModelConfig.from_json(values), config.rollout)
    try:
        check_cache(plan, config.rollout)
    except EngineError as error:
        raise ValueError(str(error)) from error
    return f"{config.rollout.max_conversations} conversations fit the cache"


def _check_ray(address: str) -> str:
    if address in ("local", "auto"):
        return {"local": "Ray starts with the run", "auto": "joins the cluster of this machine"}[
            address
        ]
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (colon and host and port.isdigit()):
        raise ValueError(f"{address!r} is none of local, auto, host:port")
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS):
            return f"{address} answers"
    except (OSError, OverflowError) as error:
        raise ValueError(
            f'{address} does not answer ({error}): start Ray there, or use "local"'
        ) from None


def _check_tasks(
    name: str,
    section: EnvironmentConfig,
    split: Split,
    tokenizer: Tokenizer | None,
    rollout: RolloutConfig,
) -> Iterator[Finding]:
    subject = f"environments.{name}"
    tasks: list[Task] = []

    def look() -> str:
        tasks.extend(load_tasks(name, section, split))
        for grader in {task.grader for task in tasks}:
            load_grader(grader)
        return f"{len(tasks)} {split} tasks"

    yield _try(subject, look)
    if tasks and tokenizer is not None:
        yield _try(subject, lambda: asyncio.run(_check_openings(tasks, tokenizer, rollout)))


async def _check_openings(
    tasks: Sequence[Task], tokenizer: Tokenizer, rollout: RolloutConfig
) -> str:
    longest = 0
    for task in islice(tasks, NUM_OPENINGS):
        spec = load_environment(task.environment)
        try:
            environment, opening = await start_episode(spec, task)
            tools = offered_tools(environment, rollout)
            await end_episode(environment)
        except EnvironmentFailure as error:
            raise ValueError(f"task {task.id!r}: {error}") from error
        tokens = count_opening_tokens(tokenizer, tools, opening)
        if tokens >= rollout.max_tokens:
            raise ValueError(
                f"context too small for the first prompt: task {task.id!r} opens with {tokens} "
                f"tokens, rollout.max_tokens = {rollout.max_tokens}: raise it"
            )
        longest = max(longest, tokens)
    return f"openings have at most {longest} of {rollout.max_tokens} tokens"
