"""Named model shapes."""

from collections.abc import Callable

from model.config import ModelConfig


def tiny(vocab_size: int = 1024) -> ModelConfig:
    """Four layers with every block of the architecture: 1.4 million parameters.

    Layer 1 has KDA and a dense feed-forward, 2 and 3 KDA and experts, 4 gated MLA and experts.
    """
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        full_attn_layers=(4,),
        attn_res_block_size=2,
        kda_head_dim=32,
        q_lora_rank=64,
        kv_lora_rank=32,
        qk_nope_head_dim=32,
        v_head_dim=32,
        intermediate_size=384,
        num_experts=8,
        num_experts_per_token=2,
        routed_expert_hidden_size=64,
        moe_intermediate_size=96,
    )


PRESETS: dict[str, Callable[[int], ModelConfig]] = {"tiny": tiny}
"""Presets by name; each takes the vocabulary size."""


def get_preset(name: str, vocab_size: int) -> ModelConfig:
    """Return a preset for a vocabulary.

    Raises:
        ValueError: no preset of that name.
    """
    if name not in PRESETS:
        raise ValueError(f"no model preset {name!r}; there is: {', '.join(PRESETS)}")
    return PRESETS[name](vocab_size)
