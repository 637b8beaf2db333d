import pytest

from model import checkpoint
from model.hybrid import build_model
from model.presets import tiny
from rollout.cache_plan import SCORING_SLOTS, plan_cache
from rollout.config import RolloutConfig
from rollout.engine import EngineError
from rollout.vllm_engine import VllmEngine


def test_a_page_holds_the_states_of_neighbouring_layers():
    plan = plan_cache(tiny(), RolloutConfig())
    state = 4 * 3 * (3 * 3 * 128 + 4 * 32 * 32)  # three layers: tails and memories, float32
    assert plan.page_bytes >= state
    assert plan.page_bytes - state < 32 * 4 * 2 * 32


def test_every_conversation_has_room_at_full_length():
    config = RolloutConfig(max_tokens=1000, max_concurrent_episodes=3)
    plan = plan_cache(tiny(), config)
    assert plan.num_requests == 3 + SCORING_SLOTS
    assert plan.pages_per_request == 1 + -(-1001 // plan.tokens_per_page)
    assert plan.total_bytes == (plan.num_requests * plan.pages_per_request + 1) * plan.page_bytes


@pytest.fixture
def folder(tmp_path):
    checkpoint.save(build_model(tiny(), seed=0), tmp_path)
    return tmp_path


async def test_a_cache_too_small_for_the_conversations_is_one_line_that_says_the_size(folder):
    config = RolloutConfig(kv_cache_mib=16, max_tokens=4096)
    with pytest.raises(EngineError, match=r"kv_cache_mib = 16 is too small .* raise it to \d+$"):
        await VllmEngine.start(folder, config)


async def test_an_engine_that_does_not_fit_into_memory_is_one_line_that_says_what_to_lower(folder):
    config = RolloutConfig(kv_cache_mib=100_000_000)
    with pytest.raises(EngineError, match=r"MiB are free: lower rollout\.kv_cache_mib"):
        await VllmEngine.start(folder, config)


async def test_a_missing_checkpoint_is_one_line(tmp_path):
    with pytest.raises(EngineError, match="no such folder"):
        await VllmEngine.start(tmp_path / "absent", RolloutConfig())
