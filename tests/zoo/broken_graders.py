"""Graders, each broken in one way: `BROKEN` says which check must find it, and only that."""

import asyncio
import itertools
import math

from broken_worlds import spec_of
from sound_worlds import Vault

from envs.messages import Role
from rewards.reward import Blame, Invalid, Scored

COUNTER = itertools.count()


def policy_text(episode):
    return " ".join(m.text for m in episode.messages if m.role is Role.POLICY)


def entered(episode):
    return episode.artifacts["entered"]


def code(episode):
    return episode.task.reference["code"]


def is_right(episode):
    return entered(episode) == code(episode)


async def give_nan(episode):
    return Scored(value=math.nan)


async def give_two(episode):
    return Scored(value=2.0)


async def give_a_number(episode):
    return 1.0


async def crash(episode):
    return episode.artifacts["no such artifact"]


async def interrupt(episode):
    raise KeyboardInterrupt


async def hang(episode):
    await asyncio.sleep(60)


async def give_up(episode):
    return Invalid(reason="judge_down", blame=Blame.GRADER)


async def change_its_mind(episode):
    return Scored(value=next(COUNTER) % 2)


async def pay_all(episode):
    return Scored(value=1.0)


async def pay_for_silence(episode):
    return Scored(value=1.0 if is_right(episode) else 0.1)


async def pay_claims(episode):
    return Scored(value=float(is_right(episode) or "passed" in policy_text(episode)))


async def pay_recitals(episode):
    return Scored(value=float(is_right(episode) or code(episode) in policy_text(episode)))


async def pay_any_entry(episode):
    return Scored(value=float(entered(episode) is not None))


async def pay_a_part_of_the_code(episode):
    return Scored(value=float(entered(episode) is not None and entered(episode) in code(episode)))


async def pay_activity(episode):
    num_calls = sum(len(message.tool_calls) for message in episode.messages)
    return Scored(value=float(num_calls >= 2))


async def pay_a_code_among_others(episode):
    return Scored(value=float(code(episode) in (entered(episode) or "")))


def judged_by(grader):
    return spec_of(Vault, grader=f"broken_graders:{grader.__name__}")


BROKEN = {
    "a grader that gives NaN": (judged_by(give_nan), "grader"),
    "a grader that gives two": (judged_by(give_two), "grader"),
    "a grader that gives a bare number": (judged_by(give_a_number), "grader"),
    "a grader that crashes": (judged_by(crash), "grader"),
    "a grader that interrupts": (judged_by(interrupt), "grader"),
    "a grader that hangs": (judged_by(hang), "grader"),
    "a grader that is down": (judged_by(give_up), "grader"),
    "a grader that changes its mind": (judged_by(change_its_mind), "grader"),
    "a grader that pays all": (judged_by(pay_all), "empty"),
    "a grader that pays a little for nothing": (judged_by(pay_for_silence), "empty"),
    "a grader that believes claims": (judged_by(pay_claims), "claim"),
    "a grader that reads the answer anywhere": (judged_by(pay_recitals), "recital"),
    "a grader that pays for any entry": (judged_by(pay_any_entry), "haste"),
    "a grader that takes any part": (judged_by(pay_a_part_of_the_code), "haste"),
    "a grader that pays for activity": (judged_by(pay_activity), "garbage"),
    "a grader that takes a list": (judged_by(pay_a_code_among_others), "answer list"),
}
