"""The `reasoning_gym_answer` grader: reasoning-gym's own scorer, asked about the answer given."""

from envs.adapters.reasoning_gym import load_question
from envs.episode import Episode
from rewards.reward import Outcome, Scored


async def grade(episode: Episode) -> Outcome:
    """Grade an episode.

    Args:
        episode: Artifact `answer`, a text; no answer scores 0. The reference says which data set
            and which of its questions it was.

    Returns:
        Scored with what `score_answer` gives.

    Raises:
        ValueError: the data set cannot be made, or its scorer left [0, 1].
    """
    answer = episode.artifacts.get("answer")
    if not isinstance(answer, str):
        return Scored(value=0.0)
    questions, entry = load_question(episode.task.reference)
    return Scored(value=float(questions.score_answer(answer, entry)))
