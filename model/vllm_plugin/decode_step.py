"""One token for each of B conversations through a KDA layer's mixing, states updated in place."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.delta_attention import delta_attention_step
from model.delta_layer import KDALayer


def decode_step(
    layer: KDALayer,
    qkv: Float[Tensor, "B 3*H*K"],
    g: Float[Tensor, "B H K"],
    beta: Float[Tensor, "B H"],
    tails: Float[Tensor, "N width-1 3*H*K"],
    states: Float[Tensor, "N H K V"],
    slots: Int[Tensor, " B"],
) -> Float[Tensor, "B H V"]:
    """Advance the conversations whose states lie at `slots`.

    Args:
        layer: Its convolution and activation are used.
        qkv: Projections of the new tokens.
        g: Log-decays, nats.
        beta: Write strengths.
        tails: Convolution tails of all pages; those at `slots` are replaced.
        states: Memories of all pages; those at `slots` are replaced.
        slots: Page of each conversation.
    """
    tail = tails[slots]
    q, k, v = (x.squeeze(1) for x in layer.activate(qkv.unsqueeze(1), tail))
    output, states[slots] = delta_attention_step(q, k, v, g, beta, states[slots])
    tails[slots] = torch.cat([tail[:, 1:], qkv.unsqueeze(1)], dim=1)
    return output
