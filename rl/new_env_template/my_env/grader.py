"""The grader: is the sum right? It sees the finished episode, and nothing else of the run."""

from envs.episode import Episode
from rewards.reward import Outcome, Scored


async def grade(episode: Episode) -> Outcome:
    """Score an episode.

    Args:
        episode: Artifact `answer`, as the environment hands it over. Reference `total`.

    Returns:
        1 where the answer is right, else 0. Something that cannot be judged would be `Invalid`.
    """
    is_right = episode.artifacts["answer"] == episode.task.reference["total"]
    return Scored(value=float(is_right))
