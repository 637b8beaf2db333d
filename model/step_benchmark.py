"""A training step of the preset `tiny` against transformers' own model of the same family.

transformers ships `kimi_linear`: the published architecture's predecessor, in PyTorch. Given the
same widths, layers, heads, experts and vocabulary it does the nearest thing to the same work:
forward, backward and AdamW over one sequence. It has no attention residuals and no latent for its
experts, and its decay is unbounded, so its chunks cannot be plain matrix products.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import KimiLinearConfig, KimiLinearForCausalLM

from kernels.benchmarks.timing import take_turns
from model.config import ModelConfig
from model.hybrid import build_model
from model.logprobs import sequence_logprobs
from model.presets import tiny


@dataclass(frozen=True, slots=True, kw_only=True)
class StepComparison:
    """Two training steps over the same tokens."""

    num_tokens: int
    """T, in one sequence."""
    our_seconds: float
    """Median of a step of `tiny`."""
    their_seconds: float
    """Median of a step of transformers' `kimi_linear` with the same sizes."""

    @property
    def ratio(self) -> float:
        """Our tokens per second over theirs."""
        return self.their_seconds / self.our_seconds


def compare_training_steps(num_tokens: int, rounds: int) -> StepComparison:
    """Time both steps in turns.

    Args:
        num_tokens: T.
        rounds: Steps timed of each.
    """
    shape = tiny()
    token_ids = torch.randint(
        shape.vocab_size, (num_tokens,), generator=torch.Generator().manual_seed(0)
    )
    tasks = {"ours": our_step(shape, token_ids), "theirs": their_step(shape, token_ids)}
    seconds = take_turns(tasks, rounds)
    return StepComparison(
        num_tokens=num_tokens, our_seconds=seconds["ours"], their_seconds=seconds["theirs"]
    )


def our_step(shape: ModelConfig, token_ids: Tensor) -> Callable[[], float]:
    """Return a training step of our model, as the learner does it."""
    model = build_model(shape, seed=0)
    cu_seqlens = torch.tensor([0, len(token_ids)])

    def loss() -> Tensor:
        logprobs, _ = sequence_logprobs(model, token_ids, cu_seqlens)
        return -logprobs.sum() / (len(token_ids) - 1)

    return _step(model, loss)


def their_step(shape: ModelConfig, token_ids: Tensor) -> Callable[[], float]:
    """Return a training step of transformers' model in our sizes."""
    linear_attention = {
        "head_dim": shape.kda_head_dim,
        "num_heads": shape.num_attention_heads,
        "short_conv_kernel_size": shape.short_conv_kernel_size,
        "full_attn_layers": list(shape.full_attn_layers),
        "kda_layers": [
            layer + 1
            for layer in range(shape.num_hidden_layers)
            if not shape.is_full_attention(layer)
        ],
    }
    config = KimiLinearConfig.from_dict(
        {
            "vocab_size": shape.vocab_size,
            "hidden_size": shape.hidden_size,
            "num_hidden_layers": shape.num_hidden_layers,
            "num_attention_heads": shape.num_attention_heads,
            "num_key_value_heads": shape.num_attention_heads,
            "linear_attn_config": linear_attention,
            "q_lora_rank": shape.q_lora_rank,
            "kv_lora_rank": shape.kv_lora_rank,
            "qk_nope_head_dim": shape.qk_nope_head_dim,
            "qk_rope_head_dim": shape.qk_rope_head_dim,
            "v_head_dim": shape.v_head_dim,
            "intermediate_size": shape.intermediate_size,
            "first_k_dense_replace": shape.first_k_dense_replace,
            "num_experts": shape.num_experts,
            "num_experts_per_token": shape.num_experts_per_token,
            "num_shared_experts": shape.num_shared_experts,
            "moe_intermediate_size": shape.moe_intermediate_size,
            "use_cache": False,
            "pad_token_id": None,
            "bos_token_id": None,
            "eos_token_id": None,
        }
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = KimiLinearForCausalLM(config).train()
    batch = token_ids.unsqueeze(0)
    return _step(model, lambda: model(batch, labels=batch).loss)


def _step(model: torch.nn.Module, loss: Callable[[], Tensor]) -> Callable[[], float]:
    """Return forward, backward and AdamW as one call that returns the loss before the update."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> float:
        value = loss()
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.item()

    return step
