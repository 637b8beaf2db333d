import pytest

from rollout.config import RolloutConfig
from rollout.scripted_engine import ScriptedEngine
from rollout.throughput import BenchPlan, measure
from rollout.tokenizer import Tokenizer

TOKENIZER = Tokenizer.train(["note noted write down what you are told"] * 5, 300)
PLAN = BenchPlan(num_conversations=4, num_turns=3, tokens_per_turn=12, repetitions=1)


def babble(session, turn):
    return list(range(20, 60))


async def test_both_sides_hold_the_same_conversations():
    engine = ScriptedEngine(babble)
    result = await measure(engine, TOKENIZER, PLAN, RolloutConfig(max_tokens=512))
    assert result.sampled_tokens == 4 * 3 * 12
    assert result.loop_over_bare == pytest.approx(
        result.loop_tokens_per_second / result.bare_tokens_per_second
    )
    loop, bare = engine.sampling["notebook/0#0@0"], engine.sampling["bare/0"]
    assert len(loop) == len(bare) == 2 * 3
    assert {sampling.max_tokens for sampling in loop + bare} == {12}


async def test_a_context_too_small_for_the_conversations_is_one_clear_line():
    with pytest.raises(ValueError, match=r"rollout\.max_tokens = 90 is too small"):
        await measure(ScriptedEngine(babble), TOKENIZER, PLAN, RolloutConfig(max_tokens=90))
