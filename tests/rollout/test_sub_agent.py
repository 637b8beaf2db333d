"""A policy that asks itself: what is recorded, who wrote it, what it costs, how it ends."""

import numpy as np
import pytest

from envs.config import EnvironmentConfig
from envs.environment import EnvironmentSpec
from envs.episode import StopReason
from envs.task import Task
from rewards.reward import Blame, Scored
from rollout.agent_loop import World, run_episode
from rollout.config import RolloutConfig, SubAgentConfig
from rollout.conversation import Attempt
from rollout.engine import EngineError
from rollout.input_error import InputError
from rollout.scripted_engine import ScriptedEngine, ScriptedSession
from rollout.tokenizer import Tokenizer
from rollout.trajectory import Group, Source
from rollout.trajectory_store import append_group, read_groups

TOKENIZER = Tokenizer.train(["which year ask look put 1875 book shelf"] * 5, 300)
CALL, ARG, END = TOKENIZER.call_id, TOKENIZER.arg_id, TOKENIZER.end_id


class Shelf:
    """A number lies here; it has to be put."""

    def reset(self):
        self.value = None
        return "which year?"

    def look(self) -> str:
        """Look at the shelf."""
        return "book 1875"

    def put(self, number: int) -> str:
        """Put a number there."""
        self.value = number
        return "done"

    def done(self):
        return self.value is not None

    def artifacts(self):
        return {"number": self.value}


async def grade(episode):
    return Scored(value=float(episode.artifacts.get("number") == 1875))


def write(*parts):
    token_ids = []
    for part in parts:
        token_ids += TOKENIZER.encode(part) if isinstance(part, str) else [part]
    return token_ids


ASK = write(CALL, "ask", ARG, "which year?", END)
LOOK = write(CALL, "look", END)
PUT = write(CALL, "put", ARG, "1875", END)
ANSWER = write("1875", END)
TASK = Task(id="shelf/1", environment="shelf", grader="g")


async def play(asker, *helpers, engine=None, environment=Shelf, limits=None, **sub_agent):
    """Play with one script for the asker and one for each helper; all sessions are closed."""
    scripts = [asker, *helpers]

    def script(session_id, turn):
        number = session_id.partition("/1#0@0")[2].removeprefix("/")
        return scripts[int(number or 0)][turn]

    engine = engine or ScriptedEngine(script, experts_shape=(2, 2))
    config = RolloutConfig(
        **{"max_turns": 4, "max_tokens": 120, "max_sampled_tokens": 100, **(limits or {})},
        sub_agent=SubAgentConfig(**sub_agent),
    )
    spec = EnvironmentSpec(name="shelf", environment=environment, tasks=[])
    world = World(spec=spec, grader=grade, config=EnvironmentConfig())
    try:
        return await run_episode(Attempt(task=TASK), world, engine, TOKENIZER, config)
    finally:
        assert engine.open_sessions == set()


def text(segment):
    return TOKENIZER.decode_all(segment.token_ids.tolist())


async def test_a_sub_agent_has_a_segment_of_its_own_and_its_answer_is_the_reply():
    trajectory = await play([ASK, PUT], [LOOK, ANSWER], tools=("look", "elsewhere"))
    asker, helper = trajectory.segments
    assert text(helper) == (
        "<|tools|> look()<|end|><|user|> which year?<|end|><|policy|><|call|> look<|end|>"
        "<|tool|> book 1875<|end|><|policy|> 1875<|end|>"
    )
    assert "<|tools|> look(); put(number); ask(question)<|end|>" in text(asker)
    assert "<|call|> ask<|arg|> which year?<|end|><|tool|> 1875<|end|>" in text(asker)
    assert "book" not in text(asker)
    assert trajectory.outcome == Scored(value=1.0)
    assert [(turn.segment, turn.index) for turn in trajectory.turns] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]


@pytest.mark.parametrize("trains", [False, True])
async def test_a_choice_masks_or_credits_what_a_sub_agent_wrote(trains, tmp_path):
    trajectory = await play([ASK, PUT], [ANSWER], trains=trains)
    asker, helper = trajectory.segments
    author = Source.SUB_AGENT if trains else Source.MASKED_SUB_AGENT
    assert helper.spans[-1].source is author
    written = helper.token_ids[helper.sampled_mask].tolist()
    assert written == ANSWER
    np.testing.assert_allclose(helper.behavior_logprobs[helper.sampled_mask], np.log(0.5))
    assert helper.loss_mask.sum() == (len(ANSWER) if trains else 0)
    assert asker.token_ids[asker.loss_mask].tolist() == ASK + PUT
    append_group(tmp_path / "g.jsonl", Group(id="g", task=TASK, trajectories=(trajectory,)))
    (again,) = read_groups(tmp_path / "g.jsonl")[0].trajectories
    assert again.segments[1].spans == helper.spans


async def test_a_sub_agent_gets_the_episodes_advantage_or_none():
    from rl.credit import rloo

    for trains, num_samples in ((False, 2), (True, 4)):
        members = [
            await play([ASK, PUT], [ANSWER], trains=trains),
            await play([ASK, write("no", END)], [ANSWER], trains=trains),
        ]
        assert [member.reward for member in members] == [1.0, 0.0]
        samples = rloo([Group(id="g", task=TASK, trajectories=tuple(members))])
        assert len(samples) == num_samples
        half = samples[: num_samples // 2]
        assert all(set(sample.advantages[sample.segment.loss_mask]) == {1.0} for sample in half)


async def test_sub_agents_sample_with_seeds_of_their_own():
    engine = ScriptedEngine(
        lambda session_id, turn: [ASK, ASK, PUT][turn] if session_id.endswith("@0") else ANSWER
    )
    await play([], engine=engine)
    seeds = [each.seed for samplings in engine.sampling.values() for each in samplings]
    assert len(seeds) == len(set(seeds)) == 5
    assert engine.max_open_sessions == 2


async def test_what_sub_agents_write_comes_out_of_the_episodes_budget():
    sampled = len(ASK) + len(ANSWER)
    trajectory = await play([ASK, PUT], [ANSWER], limits={"max_sampled_tokens": sampled})
    assert trajectory.episode.stop is StopReason.MAX_TOKENS
    trajectory = await play([ASK, PUT], [ANSWER], limits={"max_sampled_tokens": len(ASK)})
    assert trajectory.episode.messages[2].text == "error: the helper has no tokens left"


async def test_tokens_of_all_conversations_are_counted_as_computed():
    trajectory = await play([ASK, PUT], [ANSWER])
    lengths = [len(segment.token_ids) for segment in trajectory.segments]
    assert trajectory.computed_tokens == sum(lengths) - 2
    assert [len(segment.expert_ids) for segment in trajectory.segments] == lengths


@pytest.mark.parametrize(
    ("helper", "reply"),
    [
        ([LOOK, LOOK], "error: the helper gave no answer in 2 turns"),
        ([write(ARG, "x", END)], "error: the helper gave no answer: an argument before any call"),
        ([write("look " * 99)], "error: the helper gave no answer: no end token"),
        ([write(CALL, "look", ARG, "x", END), ANSWER], "1875"),
        ([write(CALL, "put", ARG, "3", END), ANSWER], "1875"),
    ],
)
async def test_a_sub_agent_that_does_not_answer_is_an_error_to_the_asker(helper, reply):
    trajectory = await play([ASK, PUT], helper, tools=("look",), max_turns=2)
    assert trajectory.episode.messages[2].text == reply


async def test_a_sub_agent_may_end_the_episode():
    trajectory = await play([ASK], [PUT], tools=("put",))
    assert trajectory.episode.stop is StopReason.FINISHED
    assert trajectory.outcome == Scored(value=1.0)


async def test_an_aborted_sub_agent_is_the_infrastructures_fault(monkeypatch):
    extend = ScriptedSession.extend

    async def abort(self, token_ids, sampling):
        from dataclasses import replace

        generation = await extend(self, token_ids, sampling)
        return (
            replace(generation, finish="abort") if self._session_id.endswith("/1") else generation
        )

    monkeypatch.setattr(ScriptedSession, "extend", abort)
    trajectory = await play([ASK, PUT], [write("18")])
    assert trajectory.invalid.blame is Blame.INFRASTRUCTURE


async def test_an_engine_that_fails_under_a_sub_agent_is_raised():
    class Broken(ScriptedEngine):
        async def sample(self, session_id, turn, sampling):
            if session_id.endswith("/1"):
                raise EngineError("the worker died")
            return await super().sample(session_id, turn, sampling)

    with pytest.raises(EngineError, match="the worker died"):
        await play([], engine=Broken(lambda *_: ASK))


async def test_an_environment_with_such_a_tool_is_refused():
    class Oracle(Shelf):
        def ask(self, question: str) -> str:
            """Ask.

            Args:
                question: What.
            """
            return question

    with pytest.raises(InputError, match="Oracle has a tool 'ask'"):
        await play([], environment=Oracle)


def test_an_engine_has_seats_for_those_who_wait_and_those_who_answer():
    assert RolloutConfig(max_concurrent_episodes=6).max_conversations == 6
    with_helpers = RolloutConfig(max_concurrent_episodes=6, sub_agent=SubAgentConfig())
    assert with_helpers.max_conversations == 12
