"""Which tokens top-p sampling left in the running, token by token.

The learner replays it: a token's log-probability is relative to what it was chosen among, and what
had no chance to be sampled gets no gradient (Keep Sampling Mask: DeepSeek-V3.2, arXiv 2512.02556).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32


@dataclass(frozen=True, kw_only=True)
class SamplingMask:
    """Lists of tokens behind each other, one per token of a sequence.

    Worked example, sampled `b` among a, b, c and then `d` without a choice, behind a prompt:

        tokens     P  P  b      d
        token_ids        a b c  d
        lengths    0  0  3      1

    Raises:
        ValueError: the lengths do not add up to the number of listed tokens.
    """

    token_ids: Int32[np.ndarray, " N"]
    lengths: Int32[np.ndarray, " T"]
    """Listed tokens per token; 0: it was chosen among the whole vocabulary, or not sampled."""

    def __post_init__(self) -> None:
        if (self.lengths < 0).any() or self.lengths.sum() != len(self.token_ids):
            raise ValueError(
                f"the lengths of a sampling mask do not add up to its {len(self.token_ids)} tokens"
            )

    def __len__(self) -> int:
        return len(self.lengths)

    @classmethod
    def of_lists(cls, lists: Sequence[Sequence[int]]) -> "SamplingMask":
        """Lay lists behind each other."""
        return cls(
            token_ids=np.array([token_id for each in lists for token_id in each], dtype=np.int32),
            lengths=np.array([len(each) for each in lists], dtype=np.int32),
        )

    @classmethod
    def join(cls, masks: Sequence["SamplingMask"]) -> "SamplingMask":
        """Lay masks of successive tokens behind each other; at least one."""
        return cls(
            token_ids=np.concatenate([mask.token_ids for mask in masks]),
            lengths=np.concatenate([mask.lengths for mask in masks]),
        )

    @classmethod
    def whole(cls, num_tokens: int) -> "SamplingMask":
        """Return the mask of tokens that nothing was kept from."""
        return cls(token_ids=np.zeros(0, np.int32), lengths=np.zeros(num_tokens, np.int32))

    def first(self, num_tokens: int) -> "SamplingMask":
        """Return the mask of the first tokens."""
        lengths = self.lengths[:num_tokens]
        return SamplingMask(token_ids=self.token_ids[: lengths.sum()], lengths=lengths)

    def require(self, token_ids: Int32[np.ndarray, " T"]) -> None:
        """Refuse tokens that it does not leave.

        Raises:
            ValueError: another number of tokens, or one that is not among those of its list.
        """
        if len(token_ids) != len(self):
            raise ValueError(f"{len(token_ids)} tokens, a sampling mask of {len(self)}")
        owner = np.repeat(np.arange(len(self)), self.lengths)
        found = self.lengths == 0
        found[owner[self.token_ids == token_ids[owner]]] = True
        if not found.all():
            at = int(np.flatnonzero(~found)[0])
            raise ValueError(f"token {at} is not among the {self.lengths[at]} it was sampled from")
