"""Programs with the real OpenAI and Anthropic clients, against a scripted policy."""

import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager

import aiohttp
import anthropic
import numpy as np
import openai
import pytest

from envs.messages import Message, Role, ToolCall
from envs.task import Task
from rollout.config import RolloutConfig
from rollout.conversation import Attempt
from rollout.engine import EngineError
from rollout.gateway import Gateway
from rollout.recorder import Recorder
from rollout.renderer import Renderer
from rollout.scripted_engine import ScriptedEngine
from rollout.tokenizer import Tokenizer
from rollout.tool_parser import ToolParser
from rollout.trajectory import Source

TOKENIZER = Tokenizer.train(["gallium search query 1875 when found"] * 5, 300)
CALL, ARG, END = TOKENIZER.call_id, TOKENIZER.arg_id, TOKENIZER.end_id
SEARCH = [CALL, *TOKENIZER.encode("search"), ARG, *TOKENIZER.encode("gallium")]
SEARCH += [ARG, *TOKENIZER.encode("3"), END]
ANSWER = [*TOKENIZER.encode("found in 1875"), END]
PARAMETERS = {
    "type": "object",
    "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
    "required": ["query"],
}
FUNCTION = {"name": "search", "description": "Search.", "parameters": PARAMETERS}
CHAT_TOOLS = [{"type": "function", "function": FUNCTION}]
RESPONSE_TOOLS = [{"type": "function", **FUNCTION, "strict": False}]
ANTHROPIC_TOOLS = [{"name": "search", "description": "Search.", "input_schema": PARAMETERS}]
CONFIG = RolloutConfig(max_turns=6, max_tokens=400, max_sampled_tokens=120)
TASK = Task(id="t/1", environment="agent", grader="none")


def script_of(*turns):
    """Play these turns one after the other, whichever session asks."""
    rest = iter(turns)
    return lambda session_id, turn: next(rest)


class Rollout:
    """A gateway, one recorder behind it, and where a program finds both."""

    def __init__(self, gateway, recorder, endpoint, engine):
        self.gateway = gateway
        self.recorder = recorder
        self.endpoint = endpoint
        self.engine = engine
        self.openai = openai.AsyncOpenAI(
            base_url=endpoint.openai_url, api_key=endpoint.api_key, max_retries=0
        )
        self.anthropic = anthropic.AsyncAnthropic(
            base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0
        )

    def chat(self, messages, **options):
        return self.openai.chat.completions.create(
            model="any", messages=messages, tools=CHAT_TOOLS, **options
        )


@asynccontextmanager
async def rollout_of(*turns, config=CONFIG, engine=None):
    engine = engine or ScriptedEngine(script_of(*turns), experts_shape=(2, 2))
    gateway = await Gateway.start()
    recorder = Recorder(Attempt(task=TASK, temperature=0.7), engine, TOKENIZER, config)
    rollout = Rollout(gateway, recorder, gateway.open(recorder), engine)
    try:
        yield rollout
    finally:
        await rollout.openai.close()
        await rollout.anthropic.close()
        await recorder.close()
        await gateway.stop()
        assert engine.open_sessions == set()


def spell(segment):
    return TOKENIZER.decode_all(segment.token_ids.tolist())


def spell_sampled(segment):
    return TOKENIZER.decode_all(segment.token_ids[segment.loss_mask].tolist())


WHOLE = (
    "<|tools|> search(query, limit)<|end|><|user|> when was gallium found?<|end|>"
    "<|policy|><|call|> search<|arg|> gallium<|arg|> 3<|end|>"
    "<|tool|> gallium: 1875<|end|><|policy|> found in 1875<|end|>"
)


def check_recording(recorder):
    """What two turns through any of the three APIs leave behind: the same tokens."""
    (segment,) = recorder.segments
    assert spell(segment) == WHOLE
    assert segment.token_ids[segment.loss_mask].tolist() == [*SEARCH, *ANSWER]
    np.testing.assert_allclose(segment.behavior_logprobs[segment.loss_mask], np.log(0.5))
    assert [turn.finish for turn in recorder.turns] == ["stop", "stop"]
    assert [turn.action.text for turn in recorder.turns] == ["", "found in 1875"]
    assert recorder.messages == [
        Message(role=Role.USER, text="when was gallium found?"),
        Message(
            role=Role.POLICY,
            tool_calls=(ToolCall(name="search", arguments={"query": "gallium", "limit": 3}),),
        ),
        Message(role=Role.TOOL, text="gallium: 1875", tool_name="search"),
        Message(role=Role.POLICY, text="found in 1875"),
    ]
    assert segment.expert_ids is not None
    assert recorder.computed_tokens == len(segment.token_ids) - 1


QUESTION = {"role": "user", "content": "when was gallium found?"}


async def test_the_openai_chat_client_converses():
    async with rollout_of(SEARCH, ANSWER) as rollout:
        first = await rollout.chat([QUESTION])
        (call,) = first.choices[0].message.tool_calls
        assert call.function.name == "search"
        assert json.loads(call.function.arguments) == {"query": "gallium", "limit": 3}
        assert first.choices[0].finish_reason == "tool_calls"
        result = {"role": "tool", "tool_call_id": call.id, "content": "gallium: 1875"}
        second = await rollout.chat([QUESTION, first.choices[0].message, result])
        assert second.choices[0].message.content == "found in 1875"
        assert second.choices[0].finish_reason == "stop"
        assert second.usage.completion_tokens == len(ANSWER)
    check_recording(rollout.recorder)


async def test_the_openai_chat_client_streams():
    async with rollout_of(SEARCH, ANSWER) as rollout:
        async with rollout.openai.chat.completions.stream(
            model="any", messages=[QUESTION], tools=CHAT_TOOLS
        ) as stream:
            first = (await stream.get_final_completion()).choices[0].message
        (call,) = first.tool_calls
        result = {"role": "tool", "tool_call_id": call.id, "content": "gallium: 1875"}
        text = ""
        async for chunk in await rollout.chat([QUESTION, first, result], stream=True):
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        assert text == "found in 1875"
    check_recording(rollout.recorder)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_the_openai_responses_client_converses(is_stream):
    async with rollout_of(SEARCH, ANSWER) as rollout:

        async def ask(history):
            options = {"model": "any", "input": history, "tools": RESPONSE_TOOLS}
            if not is_stream:
                return await rollout.openai.responses.create(**options)
            async with rollout.openai.responses.stream(**options) as stream:
                return await stream.get_final_response()

        first = await ask([QUESTION])
        (call,) = first.output
        assert (call.name, json.loads(call.arguments)["limit"]) == ("search", 3)
        history = [QUESTION, *(item.to_dict() for item in first.output)]
        output = {"type": "function_call_output", "call_id": call.call_id}
        second = await ask([*history, {**output, "output": "gallium: 1875"}])
        assert second.output_text == "found in 1875"
        assert second.status == "completed"
    check_recording(rollout.recorder)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_the_anthropic_client_converses(is_stream):
    async with rollout_of(SEARCH, ANSWER) as rollout:

        async def ask(history):
            options = {"model": "any", "max_tokens": 64, "messages": history}
            options["tools"] = ANTHROPIC_TOOLS
            if not is_stream:
                return await rollout.anthropic.messages.create(**options)
            async with rollout.anthropic.messages.stream(**options) as stream:
                return await stream.get_final_message()

        first = await ask([QUESTION])
        (call,) = first.content
        assert (call.name, call.input) == ("search", {"query": "gallium", "limit": 3})
        assert first.stop_reason == "tool_use"
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "gallium: 1875"}
        history = [
            QUESTION,
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [result]},
        ]
        second = await ask(history)
        assert [block.text for block in second.content] == ["found in 1875"]
        assert second.stop_reason == "end_turn"
    check_recording(rollout.recorder)


async def test_the_tokens_are_those_of_a_native_episode():
    from envs.messages import ToolParameter, ToolSpec

    tools = (
        ToolSpec(
            name="search",
            description="",
            parameters=(
                ToolParameter(name="query", type="string"),
                ToolParameter(name="limit", type="integer"),
            ),
        ),
    )
    renderer = Renderer(TOKENIZER, tools)
    action = ToolParser(TOKENIZER, tools).parse(SEARCH)
    reply = Message(role=Role.TOOL, text="gallium: 1875", tool_name="search")
    pieces = renderer.render_opening("when was gallium found?")
    pieces += renderer.render_action(action) + renderer.render_replies([reply])
    native = [token_id for piece in pieces for token_id in piece.token_ids]
    assert TOKENIZER.decode_all([*native, *ANSWER]) == WHOLE


async def test_a_rewritten_history_begins_a_segment_and_trains_no_token_twice():
    async with rollout_of(SEARCH, ANSWER, ANSWER) as rollout:
        first = (await rollout.chat([QUESTION])).choices[0].message
        result = {
            "role": "tool",
            "tool_call_id": first.tool_calls[0].id,
            "content": "gallium: 1875",
        }
        await rollout.chat([QUESTION, first, result])
        # The question is gone: a compacted history, with the policy's first message kept.
        summary = {"role": "user", "content": "gallium"}
        await rollout.chat([summary, first, result])
    one, two = rollout.recorder.segments
    assert spell(one) == WHOLE
    assert spell(two) == WHOLE.replace(" when was gallium found?", " gallium")
    assert spell_sampled(two) == " found in 1875<|end|>"
    assert [turn.segment for turn in rollout.recorder.turns] == [0, 0, 1]
    assert [turn.index for turn in rollout.recorder.turns] == [0, 1, 2]


async def test_tokens_that_were_sampled_keep_their_ids_in_a_new_segment():
    # Not what the encoder would write for the text "found": letter by letter.
    letters = [TOKENIZER.encode(letter)[-1] for letter in "found"]
    odd = [*TOKENIZER.encode("1875"), *letters, END]
    assert TOKENIZER.encode(TOKENIZER.decode(odd)) != odd[:-1]
    async with rollout_of(odd, ANSWER) as rollout:
        first = (await rollout.chat([QUESTION])).choices[0].message
        await rollout.chat([{"role": "user", "content": "again"}, first, QUESTION])
    two = rollout.recorder.segments[1].token_ids.tolist()
    assert TOKENIZER.decode_all(odd) in TOKENIZER.decode_all(two)
    assert any(two[i : i + len(odd)] == odd for i in range(len(two)))


async def test_a_changed_text_of_the_policy_is_a_rewritten_history():
    async with rollout_of(ANSWER, ANSWER) as rollout:
        await rollout.chat([QUESTION])
        forged = {"role": "assistant", "content": "found in 1812"}
        await rollout.chat([QUESTION, forged, {"role": "user", "content": "sure?"}])
    assert len(rollout.recorder.segments) == 2
    assert " found in 1812" in spell(rollout.recorder.segments[1])
    assert spell_sampled(rollout.recorder.segments[1]) == " found in 1875<|end|>"


async def test_versions_and_the_temperature_are_the_runs():
    engine = ScriptedEngine(script_of(ANSWER, ANSWER))
    async with rollout_of(engine=engine) as rollout:
        engine.version = 4
        first = (await rollout.chat([QUESTION], temperature=0.1)).choices[0].message
        engine.version = 5
        await rollout.chat([QUESTION, first, QUESTION])
    (segment,) = rollout.recorder.segments
    sampled = {
        (span.turn, span.policy_version) for span in segment.spans if span.source is Source.POLICY
    }
    assert sampled == {(0, 4), (1, 5)}
    assert {each.temperature for each in engine.sampling["t/1#0@0"]} == {0.7}


async def test_a_message_cut_by_its_own_limit_goes_on_after_an_end_marker():
    async with rollout_of(ANSWER, ANSWER) as rollout:
        first = await rollout.chat([QUESTION], max_completion_tokens=2)
        assert first.choices[0].finish_reason == "length"
        await rollout.chat([QUESTION, first.choices[0].message, QUESTION])
    (segment,) = rollout.recorder.segments
    assert segment.token_ids[segment.loss_mask].tolist() == [*ANSWER[:2], *ANSWER]
    assert spell(segment).count("<|end|><|user|>") == 2  # after the tools, and after the cut


@pytest.mark.parametrize(
    ("limits", "stop"),
    [
        ({"max_turns": 1}, "max_turns"),
        ({"max_sampled_tokens": len(ANSWER)}, "max_tokens"),
        ({"max_tokens": 64}, "max_tokens"),
    ],
)
async def test_a_spent_budget_is_refused_and_stays_refused(limits, stop):
    config = CONFIG.model_copy(update=limits)
    async with rollout_of(ANSWER, ANSWER, config=config) as rollout:
        first = (await rollout.chat([QUESTION])).choices[0].message
        long = {"role": "user", "content": "gallium " * 40}
        for _ in range(2):
            with pytest.raises(openai.BadRequestError, match="the episode is over"):
                await rollout.chat([QUESTION, first, long])
        assert rollout.recorder.stop == stop
        assert len(rollout.recorder.turns) == 1


async def test_calls_that_no_tool_fits_reach_the_program_as_they_are():
    unknown = [CALL, *TOKENIZER.encode("fly"), ARG, *TOKENIZER.encode("3"), END]
    wrong = [CALL, *TOKENIZER.encode("search"), ARG, *TOKENIZER.encode("gallium")]
    wrong += [ARG, *TOKENIZER.encode("when"), ARG, *TOKENIZER.encode("1"), END]
    async with rollout_of(unknown, wrong) as rollout:
        for expected in (
            ("fly", {"argument_1": "3"}),
            ("search", {"query": "gallium", "limit": "when", "argument_3": "1"}),
        ):
            (call,) = (await rollout.chat([QUESTION])).choices[0].message.tool_calls
            assert (call.function.name, json.loads(call.function.arguments)) == expected


@pytest.mark.parametrize(
    "options",
    [
        {"n": 2},
        {"stop": ["x"]},
        {"logprobs": True},
        {"response_format": {"type": "json_object"}},
        {"tool_choice": "required"},
        {"max_tokens": -1},
        {"messages": []},
        {"messages": [{"role": "assistant", "content": "hello"}]},
        {"messages": [{"role": "tool", "tool_call_id": "call_9", "content": "hello"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
    ],
)
async def test_what_cannot_be_done_is_refused_not_ignored(options):
    async with rollout_of(ANSWER) as rollout:
        with pytest.raises(openai.BadRequestError):
            await rollout.chat(**{"messages": [QUESTION], **options})
        assert rollout.recorder.turns == []


async def test_a_key_of_no_running_rollout_is_refused():
    async with rollout_of(ANSWER) as rollout:
        stranger = rollout.openai.with_options(api_key="guess")
        with pytest.raises(openai.AuthenticationError):
            await stranger.chat.completions.create(model="any", messages=[QUESTION])
        rollout.gateway.close(rollout.endpoint)
        with pytest.raises(anthropic.AuthenticationError):
            await rollout.anthropic.messages.create(model="any", max_tokens=8, messages=[QUESTION])


async def test_a_body_that_is_no_json_is_refused():
    async with rollout_of(ANSWER) as rollout, aiohttp.ClientSession() as client:
        headers = {"x-api-key": rollout.endpoint.api_key}
        url = f"{rollout.endpoint.openai_url}/responses"
        for body in (b"{", b"[]", b"\xff", b"[" * 100_000):
            async with client.post(url, data=body, headers=headers) as response:
                assert response.status == 400


async def test_an_engine_that_fails_is_remembered_as_that():
    class Broken(ScriptedEngine):
        async def sample(self, *_):
            raise EngineError("the worker died")

    async with rollout_of(engine=Broken(script_of())) as rollout:
        with pytest.raises(openai.BadRequestError, match="the worker died"):
            await rollout.chat([QUESTION])
        assert str(rollout.recorder.engine_error) == "the worker died"


async def test_requests_of_one_rollout_wait_for_each_other():
    engine = ScriptedEngine(script_of(*[ANSWER] * 4), seconds_per_turn=0.01)
    async with rollout_of(engine=engine) as rollout:
        await asyncio.gather(*(rollout.chat([QUESTION]) for _ in range(4)))
        assert engine.max_open_sessions == 1
    assert [spell_sampled(segment) for segment in rollout.recorder.segments] == [
        " found in 1875<|end|>"
    ] * 4


AGENT = """
import openai
client = openai.OpenAI()  # finds the policy by OPENAI_BASE_URL and OPENAI_API_KEY
question = {"role": "user", "content": "when was gallium found?"}
print(client.chat.completions.create(model="gpt", messages=[question]).choices[0].message.content)
"""


async def test_a_process_that_only_knows_a_base_url_is_recorded():
    async with rollout_of(ANSWER) as rollout:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            AGENT,
            env={**os.environ, **rollout.endpoint.variables()},
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
    assert output == b"found in 1875\n"
    assert spell_sampled(rollout.recorder.segments[0]) == " found in 1875<|end|>"
