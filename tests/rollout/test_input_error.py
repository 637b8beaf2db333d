"""Errors of an actor: those that a user can mend keep their type, a library's do not."""

import asyncio

import pytest
from ray.exceptions import RayTaskError

from rollout.collector import Collector, _Seat
from rollout.config import RolloutConfig
from rollout.engine import EngineError
from rollout.input_error import InputError, about_input


class FailingActor:
    """Stands for Ray's handle of an actor in which a method raised."""

    def __init__(self, cause):
        self.run_group = self
        self._error = RayTaskError("run_group", "Traceback of the actor", cause)

    def remote(self, *arguments):
        failed = asyncio.get_running_loop().create_future()
        failed.set_exception(self._error.as_instanceof_cause())
        return failed


def ask(cause, tmp_path):
    collector = Collector(RolloutConfig(), tmp_path)
    seat = _Seat(actor=FailingActor(cause))
    return collector._ask(seat, "run_group", "task", 8, 0)


async def test_what_a_user_can_mend_comes_out_as_it_was_raised(tmp_path):
    with pytest.raises(InputError, match=r"^task x: its opening is too long$"):
        await ask(InputError("task x: its opening is too long"), tmp_path)


async def test_a_value_error_of_a_library_is_a_failure_of_the_actor(tmp_path):
    with pytest.raises(EngineError, match=r"run_group: ValueError: not enough values") as failure:
        await ask(ValueError("not enough values to unpack"), tmp_path)
    assert isinstance(failure.value.__cause__, RayTaskError)  # prints the actor's traceback


async def test_other_errors_keep_their_type(tmp_path):
    with pytest.raises(KeyError, match="slot"):
        await ask(KeyError("slot"), tmp_path)


def test_what_a_loader_refuses_is_input():
    with pytest.raises(InputError, match="no such environment"), about_input():
        raise ValueError("no such environment")
    with pytest.raises(TypeError), about_input():
        raise TypeError
