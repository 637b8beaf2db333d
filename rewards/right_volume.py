"""The `right_volume` grader: was the volume that states the fact leafed through to its end?

Takes an episode with the artifact `volume`, returns 1 or 0. An episode that ends before the volume
does leaves no artifact, and scores 0.
"""

from envs.episode import Episode
from rewards.reward import Outcome, Scored


async def grade(episode: Episode) -> Outcome:
    """Grade an episode.

    Args:
        episode: Artifact `volume`, the one that was read; reference `volume`, the right one.

    Returns:
        Scored 1 or 0.
    """
    return Scored(value=float(episode.artifacts.get("volume") == episode.task.reference["volume"]))
