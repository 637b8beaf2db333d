"""Log-probabilities of the tokens of packed sequences: the one place that shifts.

Index t of everything in Limosa describes token t. A decoder's hidden state t predicts token t + 1;
here, and nowhere else, the two meet.

In float32 on a CPU the log-probabilities are those of the engine bit for bit, for tokens that it
sampled under the same weights, where

- the process began under `kernels.rows.SAME_ROWS`, as the engine's did,
- the experts are replayed (or chosen anew, for equal scores choose alike), and
- one tile of `token_logprobs` holds the vocabulary: up to 2,048 tokens; beyond, the sum over the
  vocabulary is taken in another order than the sampler's.
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kernels.lane import lane_of
from kernels.rows import ROW_STEP
from kernels.token_logprobs import token_logprobs
from kernels.token_logprobs.support import Support
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
    support: Support | None = None,
) -> tuple[Float[Tensor, " T"], Float[Tensor, " T"]]:
    """Score every token of packed sequences given those before it in its sequence.

    Args:
        policy: Decoder and head.
        token_ids: Sequences behind each other.
        cu_seqlens: Start of each sequence, and T at the end: S + 1 numbers.
        temperature: Divides the logits.
        expert_ids: Experts to replay; tokens with -1 choose anew.
        scored: Tokens whose scores are wanted, all if None; the others cost no head.
        support: What each of the T tokens was chosen among; the vocabulary if None.

    Returns:
        Log-probabilities of the tokens, and entropies of the distributions they were drawn from,
        nats. Both are 0 at each sequence's first token and where `scored` is False. Gradients
        flow.
    """
    hidden = _hidden(policy, token_ids, cu_seqlens, expert_ids)
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
        None if support is None else support.select(positions),
    )
    logprobs, entropy = (x.new_zeros(len(token_ids)).index_copy(0, positions, x) for x in values)
    return logprobs, entropy


def _hidden(
    policy: CausalDecoder,
    token_ids: Int[Tensor, " T"],
    cu_seqlens: Int[Tensor, " S1"],
    expert_ids: Int[Tensor, "T L A"] | None,
) -> Float[Tensor, "T D"]:
    """Run the decoder, in the engine's numbers of rows where it gives the engine's bits.

    What fills up is one more sequence of the pack's own tokens, so that a balancer, which counts
    the scores of all rows, counts none that the pack would not have.
    """
    num_tokens = len(token_ids)
    missing = -num_tokens % ROW_STEP
    if missing and lane_of(policy.lm_head.weight) == "cpu":
        rows = torch.arange(num_tokens + missing) % num_tokens
        token_ids = token_ids[rows]
        expert_ids = None if expert_ids is None else expert_ids[rows]
        cu_seqlens = torch.cat([cu_seqlens, cu_seqlens.new_tensor([len(rows)])])
    output = policy.model.run(token_ids, PackedMixer(cu_seqlens), expert_ids)
    return output.hidden[:num_tokens]
