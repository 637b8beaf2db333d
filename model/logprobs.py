"""Log-probabilities of the tokens of packed sequences: the one place that shifts.

Index t of everything in Limosa describes token t. A decoder's hidden state t predicts token t + 1;
here, and nowhere else, the two meet.
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kernels.token_logprobs import token_logprobs
from model.decoder import Decoder
from model.mixer import PackedMixer


@runtime_checkable
class CausalDecoder(Protocol):
    """A decoder with an output head."""

    @property
    def model(self) -> Decoder:
        """Everything below the head."""
        ...

    @property
    def lm_head(self) -> nn.Linear:
        """The output head."""
        ...


def sequence_logprobs(
    policy: CausalDecoder,
    token_ids: Int[Tensor, " T"],
    cu_seqlens: Int[Tensor, " S1"],
    temperature: float = 1.0,
    expert_ids: Int[Tensor, "T L A"] | None = None,
    scored: Bool[Tensor, " T"] | None = None,
) -> tuple[Float[Tensor, " T"], Float[Tensor, " T"]]:
    """Score every token of packed sequences given those before it in its sequence.

    Args:
        policy: Decoder and head.
        token_ids: Sequences behind each other.
        cu_seqlens: Start of each sequence, and T at the end: S + 1 numbers.
        temperature: Divides the logits.
        expert_ids: Experts to replay; tokens with -1 choose anew.
        scored: Tokens whose scores are wanted, all if None; the others cost no head.

    Returns:
        Log-probabilities of the tokens, and entropies of the distributions they were drawn from,
        nats. Both are 0 at each sequence's first token and where `scored` is False. Gradients
        flow.
    """
    hidden = policy.model.run(token_ids, PackedMixer(cu_seqlens), expert_ids).hidden
    wanted = torch.ones_like(token_ids, dtype=torch.bool) if scored is None else scored.clone()
    wanted[cu_seqlens[:-1].long()] = False
    positions = wanted.nonzero().squeeze(1)
    if len(positions) == 0:
        nothing = 0.0 * hidden.sum(dim=1)  # with a gradient, of zero
        return nothing, nothing
    values = token_logprobs(
        hidden.index_select(0, positions - 1),
        policy.lm_head.weight,
        token_ids.index_select(0, positions),
        temperature,
    )
    logprobs, entropy = (x.new_zeros(len(token_ids)).index_copy(0, positions, x) for x in values)
    return logprobs, entropy
