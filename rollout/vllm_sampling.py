"""How a turn is asked of vLLM, and what it says of each token that it sampled."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rollout.engine import MAX_SUPPORT, SamplingConfig

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput
    from vllm.sampling_params import SamplingParams

WHOLE_TURN = 1 << 30
"""Tokens after which vLLM reports an unfinished turn: never, a turn comes in one piece."""
SEED_MASK = (1 << 63) - 1
"""Seeds that vLLM takes."""


def sampling_parameters(sampling: SamplingConfig, vocabulary_size: int) -> "SamplingParams":
    """Spell a turn's sampling for vLLM.

    Where the vocabulary is cut (top-p below 1), the log-probs of all that may be left are asked
    for; of others, the sampled token's alone.
    """
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    is_cut = sampling.top_p < 1.0
    bound = min(MAX_SUPPORT, vocabulary_size)
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=bound if is_cut else 0,
        max_tokens=sampling.max_tokens,
        stop_token_ids=list(sampling.stop_token_ids),
        seed=sampling.seed & SEED_MASK,
        logprobs=bound if is_cut else 0,
        flat_logprobs=True,
        detokenize=False,
        ignore_eos=True,
        output_kind=RequestOutputKind.DELTA,
        stream_interval=WHOLE_TURN,
        skip_clone=True,
    )


def read_logprobs(completion: "CompletionOutput") -> Iterator[tuple[float, list[int]]]:
    """Yield each token's log-probability, and those listed tokens that could have been sampled."""
    lists: Any = completion.logprobs  # flat, as was asked for
    for start, stop in zip(lists.start_indices, lists.end_indices, strict=True):
        # The sampled token comes first, and once more at its rank.
        listed = zip(lists.token_ids[start:stop], lists.logprobs[start:stop], strict=True)
        support = dict.fromkeys(token for token, logprob in listed if logprob > -math.inf)
        yield lists.logprobs[start], list(support)
