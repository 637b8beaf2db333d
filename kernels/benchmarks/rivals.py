"""The best public kernels for the same operations, where they are installed.

None of them is a dependency. One that cannot be imported is named once, with the reason, and left
out of the table.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

Run = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Rival:
    """A public kernel."""

    name: str
    """As the table calls it."""
    module: str
    """Where it is imported from."""
    function: str
    """Its name there."""


CHUNK_KDA = Rival("fla chunk_kda", "fla.ops.kda", "chunk_kda")
RECURRENT_KDA = Rival("fla fused_recurrent_kda", "fla.ops.kda", "fused_recurrent_kda")
TRL_LOGPROBS = Rival("TRL selective_log_softmax", "trl.trainer.utils", "selective_log_softmax")
LIGER_LOSS = Rival(
    "Liger fused linear cross entropy",
    "liger_kernel.transformers.functional",
    "liger_fused_linear_cross_entropy",
)
RIVALS = (CHUNK_KDA, RECURRENT_KDA, TRL_LOGPROBS, LIGER_LOSS)
"""All of them."""


@cache
def load(rival: Rival) -> Run | str:
    """Return a rival's function, or one line that says why there is none."""
    try:
        return getattr(import_module(rival.module), rival.function)
    except (ImportError, AttributeError) as error:
        return f"{rival.name} is left out: {' '.join(str(error).split())}"


def absences() -> Iterator[str]:
    """Say which rivals are left out."""
    for rival in RIVALS:
        found = load(rival)
        if isinstance(found, str):
            yield found


def chunk_kda(
    run: Run, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, cu_seqlens: Tensor
) -> Tensor:
    """Call fla's chunked kernel on our packed tensors."""
    batch = (x.unsqueeze(0) for x in (q, k, v, g, beta))
    return run(*batch, cu_seqlens=cu_seqlens)[0].squeeze(0)


def recurrent_kda(run: Run, *inputs: Tensor) -> Tensor:
    """Call fla's decoding kernel on q, k, v, g, beta and the states of B sequences."""
    *token, states = (x.unsqueeze(1) for x in inputs)
    return run(*token, initial_state=states.squeeze(1), output_final_state=True)[0].squeeze(1)


def trl_logprobs(run: Run, hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """Call TRL's log-softmax of chosen tokens, on all logits."""
    return run(hidden @ head.T, targets)


def liger_loss(run: Run, hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """Call Liger's fused head and loss: the sum of the log-probabilities, no entropy."""
    loss = run(hidden, head, targets, reduction="sum")
    return -(loss if isinstance(loss, Tensor) else torch.as_tensor(loss[0]))
