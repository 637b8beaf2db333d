"""Check that an environment is sound before a run pays for it, without a model or a grader.

Takes an environment, returns the checks that failed; none is a pass. What needs a grader is in
`rewards/check.py`.
"""

from envs.check_contract import CHECKS as CONTRACT_CHECKS
from envs.check_hardship import CHECKS as HARDSHIP_CHECKS
from envs.config import EnvironmentConfig
from envs.environment import EnvironmentSpec
from envs.soundness import CheckLimits, CheckResult, Subject, run_checks

ENVIRONMENT_CHECKS = (*CONTRACT_CHECKS, *HARDSHIP_CHECKS)
"""All that can be checked without a grader."""


async def check_environment(
    spec: EnvironmentSpec, section: EnvironmentConfig | None = None, num_tasks: int = 8
) -> list[CheckResult]:
    """Check an environment.

    Args:
        spec: The environment.
        section: Its section in a configuration: options of its task set, or where its tasks are.
        num_tasks: Tasks of each split to play.

    Returns:
        The checks that failed, the most basic ones first.
    """
    limits = CheckLimits(num_tasks=num_tasks)
    subject = Subject(spec, section or EnvironmentConfig(), limits)
    return (await run_checks(subject, ENVIRONMENT_CHECKS)).failures
