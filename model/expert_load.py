"""Load of the routed experts: who got how many tokens, and how uneven that is.

Takes expert ids, returns counts that add up over micro-batches; the figures divide only then.
"""

from dataclasses import dataclass
from typing import Self

import torch
from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """Tokens that each expert of each MoE layer took.

    Worked example, one layer with four experts and two choices per token:

        load = ExpertLoad.of(torch.tensor([[[0, 1]], [[0, 2]], [[0, 1]]]), num_experts=4)
        load.counts            # [[3, 2, 1, 0]]
        load.max_violation()   # [1.0]: the busiest takes twice the mean of 1.5
        load.num_dead()        # [1]
    """

    counts: Int[Tensor, "L E"]

    @classmethod
    def of(cls, expert_ids: Int[Tensor, "T L A"], num_experts: int) -> Self:
        """Count recorded choices; entries of -1 (nothing recorded) count nowhere."""
        num_layers = expert_ids.shape[1]
        ids = expert_ids.long().transpose(0, 1).flatten(1)
        layer = torch.arange(num_layers, device=ids.device).unsqueeze(1)
        flat = (ids + layer * num_experts)[ids >= 0]
        counts = flat.bincount(minlength=num_layers * num_experts)
        return cls(counts.view(num_layers, num_experts))

    def __add__(self, other: Self) -> Self:
        return type(self)(self.counts + other.counts)

    def max_violation(self) -> list[float]:
        """Return busiest expert's load / mean load - 1 of each layer.

        0 is perfect balance, E/A - 1 the worst; also 0 where no token was counted.
        """
        loads = self.counts.double()
        mean = loads.mean(dim=1).clamp(min=torch.finfo(loads.dtype).tiny)
        violation = loads.amax(dim=1) / mean - 1.0
        return violation.where(loads.any(dim=1), 0.0).tolist()

    def num_dead(self) -> list[int]:
        """Return the number of experts without a token, of each layer."""
        return (self.counts == 0).sum(dim=1).tolist()
