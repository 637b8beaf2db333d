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


def small(vocab_size: int = 32768) -> ModelConfig:
    """Thirteen layers for one GPU: the published head sizes at a seventh of the width.

    Nine KDA and four global layers; the last layer finishes a second sum of the attention
    residuals. The MLA latent has the one width, 512 + 64, for which GPU engines have kernels.
    """
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=1024,
        num_hidden_layers=13,
        num_attention_heads=8,
        full_attn_layers=(4, 8, 12, 13),
        attn_res_block_size=12,
        kda_head_dim=128,
        q_lora_rank=512,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        intermediate_size=4096,
        num_experts=64,
        num_experts_per_token=8,
        num_shared_experts=2,
        routed_expert_hidden_size=512,
        moe_intermediate_size=384,
    )


def k3(vocab_size: int = 163_840) -> ModelConfig:
    """The text model of Kimi K3 (arXiv 2607.24653, table 1); `python -m model.accounting k3`."""
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=7168,
        num_hidden_layers=93,
        num_attention_heads=96,
        full_attn_layers=(*range(4, 93, 4), 93),
        attn_res_block_size=12,
        kda_head_dim=128,
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        intermediate_size=33_792,
        num_experts=896,
        num_experts_per_token=16,
        num_shared_experts=2,
        routed_expert_hidden_size=3584,
        moe_intermediate_size=3072,
    )


PRESETS: dict[str, Callable[..., ModelConfig]] = {"tiny": tiny, "small": small, "k3": k3}
"""Presets by name; each takes the vocabulary size, or has its own."""


def get_preset(name: str, vocab_size: int) -> ModelConfig:
    """Return a preset for a vocabulary.

    Raises:
        ValueError: no preset of that name.
    """
    if name not in PRESETS:
        raise ValueError(f"no model preset {name!r}; there is: {', '.join(PRESETS)}")
    return PRESETS[name](vocab_size)
