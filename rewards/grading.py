"""Where graders are called: whatever they do, an outcome comes out and nobody else waits."""

import logging
from functools import partial

from envs.episode import Episode
from envs.foreign_code import call_apart
from envs.messages import Role
from rewards.reward import Blame, Grader, Invalid, Outcome, require_outcome

_log = logging.getLogger(__name__)


async def grade_episode(grader: Grader, episode: Episode, timeout_seconds: float) -> Outcome:
    """Grade an episode.

    The grader runs in a thread with an event loop of its own: one that sleeps or computes without
    an `await` holds up no other episode, and one that never ends is ended, with its sandboxes.

    Args:
        grader: Foreign code. It must not keep what belongs to one event loop from call to call.
        episode: What it is given.
        timeout_seconds: Until it is given up.

    Returns:
        Its outcome. Invalid, blame grader, where it took longer (`grader_timeout`), or raised or
        returned what is no outcome (`grader_failed`).
    """
    try:
        num_turns = sum(message.role is Role.POLICY for message in episode.messages)
        outcome = await call_apart(partial(grader, episode), timeout_seconds)
        return require_outcome(outcome, num_turns)
    except TimeoutError:
        detail = f"no outcome within {timeout_seconds:g} s"
        return Invalid(reason="grader_timeout", blame=Blame.GRADER, detail=detail)
    except (Exception, SystemExit) as error:  # a grader is foreign code: it may raise anything
        _log.warning("grader of %s raised", episode.task.id, exc_info=error)
        detail = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return Invalid(reason="grader_failed", blame=Blame.GRADER, detail=detail)
