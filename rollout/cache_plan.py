"""How much cache a rollout needs: known before an engine starts, so that it can be said in a line.

The engine's cache is made of pages of one size. An MLA layer stores the latent of each token twice
(as key and as value); KDA layers that stand together store one page per conversation, however long
it is.
"""

import math
from dataclasses import dataclass

import psutil

from model.config import ModelConfig
from model.vllm_plugin.cache_shape import kda_spans, page_shapes
from rollout.config import RolloutConfig
from rollout.engine import EngineError

BYTES = 4
"""Of a number in the cache: float32."""
BLOCK_STEP = 32
"""Tokens per page are a multiple of this."""
PROCESS_BYTES = 1 << 30
"""Memory of an engine's process without its cache: mostly libraries."""
SCORING_SLOTS = 8
"""Requests beside the conversations: sequences that are scored, not sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlan:
    """Pages for every conversation at its full length, so that none is ever preempted."""

    tokens_per_page: int
    page_bytes: int
    """Of one page of one layer."""
    layers_per_pool: int
    """Layers that share a page number; vLLM pads groups of layers to this size."""
    pages_per_request: int
    """At full length, over all groups of layers."""
    num_requests: int
    """Conversations and scoring slots."""

    @property
    def total_bytes(self) -> int:
        """Bytes of all pages; one more than the requests need, which vLLM keeps empty."""
        pages = self.num_requests * self.pages_per_request + 1
        return pages * self.layers_per_pool * self.page_bytes


def plan_cache(shape: ModelConfig, config: RolloutConfig) -> CachePlan:
    """Work out pages for a model and a rollout.

    Args:
        shape: Of the model.
        config: Conversations at once, and their length.
    """
    tails, memories = page_shapes(shape)
    state_bytes = BYTES * (math.prod(tails) + math.prod(memories))
    token_bytes = BYTES * 2 * shape.latent_width
    tokens = BLOCK_STEP * -(-state_bytes // (BLOCK_STEP * token_bytes))
    num_global, num_spans = len(shape.full_attn_layers), len(kda_spans(shape))
    pool = min(num_global, num_spans)
    groups_states, groups_latents = -(-num_spans // pool), -(-num_global // pool)
    return CachePlan(
        tokens_per_page=tokens,
        page_bytes=tokens * token_bytes,
        layers_per_pool=pool,
        pages_per_request=groups_states + groups_latents * -(-context_tokens(config) // tokens),
        num_requests=config.max_conversations + SCORING_SLOTS,
    )


def context_tokens(config: RolloutConfig) -> int:
    """Longest sequence of the engine: an episode, and the token that scoring one samples."""
    return config.max_tokens + 1


def check_cache(plan: CachePlan, config: RolloutConfig) -> None:
    """Refuse a cache that is too small for the conversations.

    Raises:
        EngineError: which figure is off, and what to change.
    """
    if plan.total_bytes > config.kv_cache_mib << 20:
        raise EngineError(
            f"rollout.kv_cache_mib = {config.kv_cache_mib} is too small for "
            f"rollout.max_concurrent_episodes = {config.max_concurrent_episodes} of "
            f"{config.max_tokens} tokens: raise it to {-(-plan.total_bytes // (1 << 20))}"
        )


def check_memory(plan: CachePlan, config: RolloutConfig) -> None:
    """Refuse a cache that is too small for the conversations, or too large for the machine.

    Raises:
        EngineError: which figure is off, and what to change.
    """
    check_cache(plan, config)
    cache_bytes = config.kv_cache_mib << 20
    available = psutil.virtual_memory().available
    if available < cache_bytes + PROCESS_BYTES:
        raise EngineError(
            f"an engine needs {(cache_bytes + PROCESS_BYTES) >> 20} MiB of memory, "
            f"{available >> 20} MiB are free: lower rollout.kv_cache_mib = {config.kv_cache_mib} "
            f"or rollout.num_engines = {config.num_engines}, or end other programs"
        )
