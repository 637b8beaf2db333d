"""The `episode_return` grader: what an environment with rewards of its own paid, as a score.

Takes an episode with the artifact `return`, the sum of its rewards, and gives the share of the
return that counts as full. Nothing paid, or less than nothing, scores 0.
"""

import math

from envs.episode import Episode
from rewards.reward import Blame, Invalid, Outcome, Scored


async def grade(episode: Episode) -> Outcome:
    """Grade an episode.

    Args:
        episode: Artifact `return`. Reference `full_return`: the return that scores 1, positive.

    Returns:
        Scored in [0, 1], with the return itself as a part; Invalid where the environment paid
        something that is no number.
    """
    paid = episode.artifacts.get("return", 0.0)
    full = episode.task.reference["full_return"]
    assert isinstance(full, int | float)
    if isinstance(paid, bool) or not isinstance(paid, int | float) or not math.isfinite(paid):
        return Invalid(
            reason="bad_return", blame=Blame.ENVIRONMENT, detail=f"return {paid!r} is no number"
        )
    value = min(1.0, max(0.0, paid / full))
    return Scored(value=value, parts={"return": float(paid)})
