"""The grader: was the larger card named? It sees the finished episode, nothing else of the run."""

from envs.episode import Episode
from rewards.reward import Outcome, Scored


async def grade(episode: Episode) -> Outcome:
    """Score an episode.

    Args:
        episode: Artifact `answer`, as the environment hands it over. Reference `larger`.

    Returns:
        1 where the answer is right, else 0. Something that cannot be judged would be `Invalid`.
    """
    is_right = episode.artifacts["answer"] == episode.task.reference["larger"]
    return Scored(value=float(is_right))
