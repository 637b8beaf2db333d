"""What a model of a given shape amounts to: parameters, tensors, bytes of cache.

Counted on modules without memory (PyTorch's meta device), one of each kind of layer, times how
often the kind occurs: the published shape has a quarter of a million tensors.

    python -m model.accounting k3
"""

import sys
from collections import Counter
from dataclasses import dataclass, fields, replace

import torch
from torch import nn

from model.config import ModelConfig
from model.decoder import Block, Decoder
from model.presets import PRESETS

ROUTED = ".experts."
"""Part of the name of every tensor of a routed expert, and of no other."""
BFLOAT16_BYTES = 2
FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounting:
    """Figures of one shape."""

    parameters: int
    """Numbers in a checkpoint, the routers' corrections included."""
    routed_parameters: int
    """Of those, numbers in routed experts."""
    active_parameters: int
    """Numbers that one token meets: all but the experts it does not pass and the embedding, of
    which it looks up one row."""
    tensors: int
    """Tensors in a checkpoint."""
    routed_tensors: int
    """Of those, tensors of routed experts. Packed to four bits each is stored as two: the numbers
    and their scales."""
    memory_bytes: int
    """Per sequence: memories of all KDA layers, float32."""
    tail_bytes: int
    """Per sequence: last inputs of the KDA layers' convolutions, bfloat16."""
    latent_bytes_per_token: int
    """Per token of a sequence: latents of all MLA layers, bfloat16."""


def account(config: ModelConfig) -> Accounting:
    """Count a shape."""
    sizes = _count_tensors(config)
    routed = {name: found for name, found in sizes.items() if ROUTED in name}
    num_parameters, num_routed = _total(sizes), _total(routed)
    # Every expert has the same size, so that the division is exact.
    num_passed = num_routed * config.num_experts_per_token // config.num_experts
    num_global = len(config.full_attn_layers)
    num_kda = config.num_hidden_layers - num_global
    width = config.num_attention_heads * config.kda_head_dim
    return Accounting(
        parameters=num_parameters,
        routed_parameters=num_routed,
        active_parameters=num_parameters
        - (num_routed - num_passed)
        - config.vocab_size * config.hidden_size,
        tensors=sum(count for count, _ in sizes.values()),
        routed_tensors=sum(count for count, _ in routed.values()),
        memory_bytes=num_kda * width * config.kda_head_dim * FLOAT32_BYTES,
        tail_bytes=num_kda * (config.short_conv_kernel_size - 1) * 3 * width * BFLOAT16_BYTES,
        latent_bytes_per_token=num_global * config.latent_width * BFLOAT16_BYTES,
    )


def _count_tensors(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Map tensor name to how often it occurs in the model, and its numbers each time."""
    shallow = replace(config, num_hidden_layers=1, full_attn_layers=(1,), first_k_dense_replace=1)
    with torch.device("meta"):
        decoder = Decoder(shallow)
        head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
    decoder.layers = nn.ModuleList()
    found = _sizes(decoder, "model", 1) | _sizes(head, "lm_head", 1)
    kinds = [
        (config.is_full_attention(layer), config.has_experts(layer))
        for layer in range(config.num_hidden_layers)
    ]
    for kind, count in Counter(kinds).items():
        first = kinds.index(kind)
        with torch.device("meta"):
            block = Block(config, first)
        found |= _sizes(block, f"model.layers.{first}", count)
    return found


def _sizes(module: nn.Module, name: str, count: int) -> dict[str, tuple[int, int]]:
    tensors = module.state_dict(prefix=f"{name}.")
    return {key: (count, tensor.numel()) for key, tensor in tensors.items()}


def _total(sizes: dict[str, tuple[int, int]]) -> int:
    return sum(count * numbers for count, numbers in sizes.values())


def main(arguments: list[str]) -> int:
    """Write the figures of presets, one a line; return the exit code."""
    if not arguments or any(name not in PRESETS for name in arguments):
        sys.stderr.write(f"usage: python -m model.accounting PRESET...  ({', '.join(PRESETS)})\n")
        return 2
    for name in arguments:
        figures = account(PRESETS[name]())
        for field in fields(figures):
            sys.stdout.write(f"{name:8}{field.name:24}{getattr(figures, field.name):>22,}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
