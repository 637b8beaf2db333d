"""Check that an environment and its grader fit together: good work pays, no work does not.

Takes an environment, returns what is wrong; an empty list is a pass. `limosa check` runs it.
"""

import random

from envs.check import Finding, check_environment, choose_tasks, say_nothing, world_of
from envs.config import EnvironmentConfig
from envs.environment import EnvironmentSpec, Expert, Split
from envs.play import play
from envs.task import Task
from envs.task_sets import list_tasks
from rewards.registry import load_grader
from rewards.reward import Blame, Grader, Invalid, Outcome, require_outcome

NUM_EXPERT_ATTEMPTS = 24
"""An expert may fail at times; one that never succeeds shows no solution."""


async def check_rewards(
    spec: EnvironmentSpec,
    section: EnvironmentConfig | None = None,
    num_tasks: int = 8,
) -> list[Finding]:
    """Check an environment as `envs.check` does, then grade episodes whose score is known.

    Args:
        spec: The environment.
        section: Its section in a configuration: options of its task set, or a file of tasks.
        num_tasks: Tasks of each split to play.

    Returns:
        Findings; the grader is not asked while the environment itself is unsound.
    """
    findings = await check_environment(spec, section, num_tasks)
    if findings:
        return findings
    for split in Split:
        tasks = list_tasks(spec, section or EnvironmentConfig(), split)
        for task in choose_tasks(tasks, num_tasks):
            findings += await _check_task(world_of(spec, task), task)
    return findings


async def _check_task(spec: EnvironmentSpec, task: Task) -> list[Finding]:
    try:
        grader = load_grader(task.grader)
    except ValueError as error:
        return [Finding(rule="the task's grader can be loaded", detail=str(error))]
    idle = await _grade(spec, task, grader, say_nothing)
    if isinstance(idle, Invalid) or idle.value != 0:
        detail = f"{task.id}: {_tell(idle)}"
        return [Finding(rule="a policy that calls no tool scores 0", detail=detail)]
    if spec.expert is None:
        return []
    for attempt in range(NUM_EXPERT_ATTEMPTS):
        expert = spec.expert(task, random.Random(f"{task.id} {attempt}"))
        outcome = await _grade(spec, task, grader, expert)
        if isinstance(outcome, Invalid):
            detail = f"{task.id}: {_tell(outcome)}"
            return [Finding(rule="an expert's episode can be graded", detail=detail)]
        if outcome.value == 1:
            return []
    detail = f"{task.id}: not in {NUM_EXPERT_ATTEMPTS} attempts"
    return [Finding(rule="an expert scores 1", detail=detail)]


async def _grade(spec: EnvironmentSpec, task: Task, grader: Grader, policy: Expert) -> Outcome:
    """Play and grade; what the grader raises is an Invalid outcome of its own."""
    episode = await play(spec, task, policy)
    try:
        return require_outcome(await grader(episode))
    except (Exception, SystemExit) as error:  # foreign code: it may raise anything
        detail = " ".join(f"{type(error).__name__}: {error}".split())
        return Invalid(reason="grader_failed", blame=Blame.GRADER, detail=detail)


def _tell(outcome: Outcome) -> str:
    if isinstance(outcome, Invalid):
        return f"{outcome.reason} ({outcome.detail})"
    return f"scored {outcome.value:g}"
