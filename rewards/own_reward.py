"""The grader of an environment that has a reward of its own (`reward` or `get_reward`).

Takes an episode whose artifact `reward` is what the environment said, returns that as a score. What
is no number in [0, 1] is the environment's fault, and Invalid.
"""

from envs.episode import Episode
from rewards.reward import Blame, Invalid, Outcome, Scored


async def grade(episode: Episode) -> Outcome:
    """Grade an episode.

    Args:
        episode: Artifact `reward`, as `envs.environment.collect_artifacts` makes it.

    Returns:
        Scored with the environment's reward; Invalid where it has none, or one out of [0, 1].
    """
    reward = episode.artifacts.get("reward")
    if not isinstance(reward, int | float):
        detail = f"the environment's reward is {reward!r}, no number"
        return Invalid(reason="reward_invalid", blame=Blame.ENVIRONMENT, detail=detail)
    try:
        return Scored(value=float(reward))
    except ValueError as error:
        return Invalid(reason="reward_invalid", blame=Blame.ENVIRONMENT, detail=str(error))
