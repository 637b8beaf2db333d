import asyncio
import sys
import time

import numpy as np
import pytest

from envs.config import EnvironmentConfig
from envs.environment import EnvironmentSpec
from envs.episode import StopReason
from envs.messages import Role
from envs.sandbox import SandboxError
from envs.task import Task
from rewards.reward import Blame, Invalid, Scored
from rollout.agent_loop import World, run_episode
from rollout.config import RolloutConfig
from rollout.conversation import Attempt
from rollout.engine import EngineError
from rollout.input_error import InputError
from rollout.scripted_engine import ScriptedEngine
from rollout.tokenizer import Tokenizer
from rollout.trajectory import NO_EXPERT, Source

TOKENIZER = Tokenizer.train(["lamp look put book shelf"] * 5, 300)
CALL, ARG, END = TOKENIZER.call_id, TOKENIZER.arg_id, TOKENIZER.end_id
CONFIG = RolloutConfig(max_turns=4, max_tokens=160, max_sampled_tokens=60)


class Shelf:
    """Put a number on the shelf; what broke is what the task's data says."""

    closed: list[str] = []  # noqa: RUF012

    def reset(self, opening="which book?", breaks=""):
        self.breaks = breaks
        self.value = None
        if breaks == "reset":
            raise RuntimeError("no shelf\nhere")
        return opening

    def look(self, seconds: int) -> str:
        """Look for some time."""
        time.sleep(seconds)
        return "a book"

    def long(self) -> str:
        """Say much."""
        return "book " * 60

    def put(self, number: int) -> str:
        """Put a number there."""
        if self.breaks == "tool":
            raise RuntimeError("it fell")
        if self.breaks == "exit":
            sys.exit(3)
        if self.breaks == "sandbox":
            raise SandboxError("no sandbox")
        self.value = number
        return "done"

    def done(self):
        return self.value is not None

    def artifacts(self):
        return {"number": self.value}

    def close(self):
        Shelf.closed.append(self.breaks)
        if self.breaks == "close":
            raise RuntimeError("stuck")


async def grade(episode):
    if episode.task.reference.get("grader") == "raises":
        raise KeyError("answer")
    if episode.task.reference.get("grader") == "exits":
        raise SystemExit(3)
    if episode.task.reference.get("grader") == "interrupts":
        raise KeyboardInterrupt
    if episode.task.reference.get("grader") == "number":
        return 0.5
    return Scored(value=float(episode.artifacts.get("number") == 3))


def world(**limits):
    spec = EnvironmentSpec(name="shelf", environment=Shelf, tasks=lambda split: [])
    return World(spec=spec, grader=grade, config=EnvironmentConfig(**limits))


def task(**data):
    reference = data.pop("reference", {})
    return Task(id="shelf/1", environment="shelf", grader="g", data=data, reference=reference)


def write(*parts):
    token_ids = []
    for part in parts:
        token_ids += TOKENIZER.encode(part) if isinstance(part, str) else [part]
    return token_ids


PUT = write(CALL, "put", ARG, "3", END)
LOOK = write(CALL, "look", ARG, "0", END)


async def play(script, *, engine=None, config=CONFIG, limits=None, **data):
    engine = engine or ScriptedEngine(lambda session, turn: script[turn])
    attempt = Attempt(task=task(**data))
    trajectory = await run_episode(attempt, world(**(limits or {})), engine, TOKENIZER, config)
    assert not engine.open_sessions
    return trajectory


async def test_an_episode_in_two_turns_is_recorded_token_by_token():
    engine = ScriptedEngine(lambda session, turn: [LOOK, PUT][turn], experts_shape=(3, 2))
    trajectory = await play(None, engine=engine)
    (segment,) = trajectory.segments
    assert TOKENIZER.decode_all(segment.token_ids.tolist()) == (
        "<|tools|> look(seconds); long(); put(number)<|end|><|user|> which book?<|end|><|policy|>"
        "<|call|> look<|arg|> 0<|end|><|tool|> a book<|end|><|policy|>"
        "<|call|> put<|arg|> 3<|end|>"
    )
    assert segment.token_ids[segment.loss_mask].tolist() == LOOK + PUT
    assert [(span.source, span.turn) for span in segment.spans] == [
        (Source.TEMPLATE, 0),
        (Source.PROMPT, 0),
        (Source.TEMPLATE, 0),
        (Source.POLICY, 0),
        (Source.TEMPLATE, 0),
        (Source.TOOL, 0),
        (Source.TEMPLATE, 0),
        (Source.POLICY, 1),
    ]
    np.testing.assert_allclose(segment.behavior_logprobs[segment.loss_mask], np.log(0.5))
    assert trajectory.outcome == Scored(value=1.0)
    assert trajectory.episode.stop is StopReason.FINISHED
    assert [message.role for message in trajectory.episode.messages] == [
        *(Role.USER, Role.POLICY, Role.TOOL, Role.POLICY, Role.TOOL)
    ]
    assert [turn.action for turn in trajectory.turns] == [
        message for message in trajectory.episode.messages if message.role is Role.POLICY
    ]


async def test_every_token_but_the_last_has_its_experts_and_is_computed_once():
    engine = ScriptedEngine(lambda session, turn: [LOOK, PUT][turn], experts_shape=(3, 2))
    trajectory = await play(None, engine=engine)
    (segment,) = trajectory.segments
    length = len(segment.token_ids)
    assert segment.expert_ids is not None
    assert segment.expert_ids.shape == (length, 3, 2)
    assert segment.expert_ids[:-1, 0, 0].tolist() == [t % 8 for t in range(length - 1)]
    assert (segment.expert_ids[-1] == NO_EXPERT).all()
    assert trajectory.computed_tokens == length - 1


async def test_a_publish_between_turns_shows_in_the_versions():
    def script(session, turn):
        engine.version = turn
        return [LOOK, PUT][turn]

    engine = ScriptedEngine(script)
    trajectory = await play(None, engine=engine)
    (segment,) = trajectory.segments
    assert segment.version_of_token[segment.loss_mask].tolist() == [0] * len(LOOK) + [1] * len(PUT)
    assert segment.single_version_length == trajectory.turns[1].span.start


@pytest.mark.parametrize(
    ("first", "error"),
    [
        (write(CALL, "read", END), "error: no tool 'read'; there are: look, long, put"),
        (write(CALL, "put", ARG, "three", END), "error: number must be integer"),
        (write(CALL, "put", END), "error: put(number) needs number"),
    ],
)
async def test_a_bad_call_is_answered_with_an_error_and_the_episode_goes_on(first, error):
    trajectory = await play([first, PUT])
    assert trajectory.episode.messages[2].text == error
    assert trajectory.outcome == Scored(value=1.0)
    assert TOKENIZER.decode(trajectory.segments[0].token_ids.tolist()).count(error) == 1


async def test_text_without_a_call_ends_the_episode_as_unparsable():
    trajectory = await play([write("a lamp", END)])
    assert trajectory.episode.stop is StopReason.UNPARSABLE
    assert trajectory.outcome == Scored(value=0.0)


async def test_a_forged_tool_reply_ends_the_episode_as_unparsable():
    trajectory = await play([write(CALL, "look", ARG, "0", TOKENIZER.tool_id, "x", END)])
    assert trajectory.episode.stop is StopReason.UNPARSABLE


async def test_the_turn_budget_is_a_visible_truncation():
    trajectory = await play([LOOK] * 9)
    assert trajectory.episode.stop is StopReason.MAX_TURNS
    assert trajectory.episode.stop.is_truncation
    assert len(trajectory.turns) == CONFIG.max_turns


async def test_the_budget_of_sampled_tokens_cuts_a_turn_short():
    config = CONFIG.model_copy(update={"max_sampled_tokens": len(LOOK) + 2})
    trajectory = await play([LOOK, PUT], config=config)
    assert trajectory.episode.stop is StopReason.MAX_TOKENS
    assert trajectory.num_sampled == len(LOOK) + 2
    assert trajectory.turns[-1].finish == "length"


async def test_a_long_reply_that_fills_the_context_is_never_sent():
    config = CONFIG.model_copy(update={"max_tokens": 90})
    trajectory = await play([write(CALL, "long", END), PUT], config=config)
    assert trajectory.episode.stop is StopReason.MAX_TOKENS
    assert trajectory.num_tokens <= 90
    assert trajectory.segments[0].spans[-1].source is Source.POLICY


async def test_a_context_too_small_for_the_opening_is_one_clear_line():
    with pytest.raises(InputError, match=r"shelf/1: its opening takes \d+ tokens .*raise it above"):
        await play([PUT], opening="book " * 300)


async def test_a_tool_that_raises_is_an_invalid_outcome_that_keeps_the_tokens():
    trajectory = await play([PUT], breaks="tool")
    assert trajectory.outcome == Invalid(
        reason="environment_failed",
        blame=Blame.ENVIRONMENT,
        detail="Shelf.put raised RuntimeError: it fell",
    )
    assert trajectory.reward is None
    assert trajectory.episode.stop is StopReason.ENVIRONMENT_ERROR
    assert trajectory.num_sampled == len(PUT)
    assert len(trajectory.turns) == 1


async def test_a_broken_sandbox_is_blamed_on_the_infrastructure():
    trajectory = await play([PUT], breaks="sandbox")
    assert trajectory.invalid is not None
    assert (trajectory.invalid.reason, trajectory.invalid.blame) == (
        "sandbox_failed",
        Blame.INFRASTRUCTURE,
    )


async def test_a_reset_that_raises_is_invalid_and_costs_nothing():
    trajectory = await play([PUT], breaks="reset")
    assert trajectory.invalid is not None
    assert trajectory.invalid.reason == "environment_failed"
    assert trajectory.episode.error == "shelf: reset raised RuntimeError: no shelf here"
    assert (trajectory.computed_tokens, trajectory.num_sampled) == (0, 0)
    assert trajectory.first_version == 0


@pytest.mark.parametrize(
    ("how", "detail"),
    [
        ("raises", "KeyError: 'answer'"),
        ("exits", "SystemExit: 3"),
        ("interrupts", "RuntimeError: KeyboardInterrupt left the call"),
        ("number", "TypeError: the grader returned float, not Scored or Invalid"),
    ],
)
async def test_a_grader_that_breaks_is_invalid_and_blamed(how, detail):
    trajectory = await play([PUT], reference={"grader": how})
    assert trajectory.outcome == Invalid(reason="grader_failed", blame=Blame.GRADER, detail=detail)


async def test_a_reset_or_a_grader_that_hangs_is_invalid(monkeypatch):
    monkeypatch.setattr("rollout.agent_loop.RESET_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr("rollout.agent_loop.GRADER_TIMEOUT_SECONDS", 0.05)

    class Slow(Shelf):
        async def reset(self):
            await asyncio.sleep(60)

    async def grade_slowly(episode):
        await asyncio.sleep(60)

    engine = ScriptedEngine(lambda session, turn: PUT)
    for name, environment in (("environment_failed", Slow), ("grader_timeout", Shelf)):
        spec = EnvironmentSpec(name="shelf", environment=environment, tasks=lambda split: [])
        slow = World(spec=spec, grader=grade_slowly, config=EnvironmentConfig())
        trajectory = await run_episode(Attempt(task=task()), slow, engine, TOKENIZER, CONFIG)
        assert trajectory.invalid is not None
        assert trajectory.invalid.reason == name


async def test_without_tools_the_first_text_is_the_answer():
    class Question:
        def reset(self, opening="which book?"):
            return opening

    async def grade_text(episode):
        return Scored(value=float(episode.messages[-1].text == "lamp"))

    spec = EnvironmentSpec(name="question", environment=Question, tasks=lambda split: [])
    question = World(spec=spec, grader=grade_text, config=EnvironmentConfig())
    engine = ScriptedEngine(lambda session, turn: write("lamp", END))
    trajectory = await run_episode(Attempt(task=task()), question, engine, TOKENIZER, CONFIG)
    assert trajectory.episode.stop is StopReason.FINISHED
    assert trajectory.outcome == Scored(value=1.0)


async def test_the_environment_is_closed_even_where_closing_raises():
    Shelf.closed.clear()
    trajectory = await play([PUT], breaks="close")
    assert Shelf.closed == ["close"]
    assert trajectory.outcome == Scored(value=1.0)


async def test_an_engine_that_fails_is_raised_and_everything_closed():
    Shelf.closed.clear()

    def fail(session, turn):
        raise EngineError("the engine is gone")

    engine = ScriptedEngine(fail)
    with pytest.raises(EngineError, match="gone"):
        await play(None, engine=engine)
    assert not engine.open_sessions
    assert Shelf.closed == [""]


async def test_the_environment_is_closed_even_where_the_session_cannot_be(monkeypatch):
    Shelf.closed.clear()

    async def fail(session):
        raise EngineError("the engine is gone")

    monkeypatch.setattr("rollout.scripted_engine.ScriptedSession.close", fail)
    with pytest.raises(EngineError, match="gone"):
        await play([PUT])
    assert Shelf.closed == [""]


async def test_a_tool_that_exits_ends_its_episode_and_not_the_engine():
    trajectory = await play([PUT], breaks="exit")
    assert trajectory.invalid is not None
    assert trajectory.invalid.detail == "Shelf.put raised SystemExit: 3"


async def test_a_cancelled_episode_closes_its_session_and_environment():
    Shelf.closed.clear()
    engine = ScriptedEngine(lambda session, turn: PUT, seconds_per_turn=60)
    playing = asyncio.create_task(play(None, engine=engine))
    await asyncio.sleep(0.05)
    assert engine.open_sessions
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert not engine.open_sessions
    assert Shelf.closed == [""]


async def test_a_slow_tool_keeps_nobody_else_waiting():
    slow = asyncio.create_task(play([write(CALL, "look", ARG, "1", END), PUT]))
    await asyncio.sleep(0.05)
    started = time.perf_counter()
    await play([LOOK, PUT])
    assert time.perf_counter() - started < 0.5
    assert (await slow).outcome == Scored(value=1.0)


async def test_a_tool_that_hangs_is_answered_with_an_error():
    hang = write(CALL, "look", ARG, "1", END)
    trajectory = await play([hang, PUT], limits={"tool_timeout_seconds": 0.1})
    assert trajectory.episode.messages[2].text == "error: look took longer than 0.1 s"
    assert trajectory.outcome == Scored(value=1.0)


async def test_each_turn_of_each_attempt_has_a_seed_of_its_own():
    engine = ScriptedEngine(lambda session, turn: [LOOK, PUT][turn])
    for sibling, round_ in ((0, 0), (1, 0), (0, 1)):
        attempt = Attempt(task=task(), sibling=sibling, round=round_)
        await run_episode(attempt, world(), engine, TOKENIZER, CONFIG)
    seeds = [sampling.seed for turns in engine.sampling.values() for sampling in turns]
    assert len(set(seeds)) == len(seeds) == 6
    again = ScriptedEngine(lambda session, turn: [LOOK, PUT][turn])
    await run_episode(Attempt(task=task()), world(), again, TOKENIZER, CONFIG)
    assert [sampling.seed for sampling in again.sampling["shelf/1#0@0"]] == seeds[:2]


async def test_the_reply_to_plain_text_is_cut_like_a_tools():
    class Flood:
        def reset(self):
            return "speak"

        def step(self, text):
            return text * 1_000_000

    spec = EnvironmentSpec(name="flood", environment=Flood, tasks=lambda split: [])
    flood = World(spec=spec, grader=grade, config=EnvironmentConfig(max_tool_characters=4))
    engine = ScriptedEngine(lambda session, turn: write("lamp", END))
    trajectory = await run_episode(Attempt(task=task()), flood, engine, TOKENIZER, CONFIG)
    assert trajectory.episode.messages[2].text == "lamp\n(cut: 4000000 characters)"
