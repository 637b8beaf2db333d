"""The tokens that a row's token was chosen among, where that was not the whole vocabulary.

Top-p sampling draws from the likeliest tokens alone. What it left out had no chance, so a learner
that scores over the whole vocabulary scores another distribution than the one that was sampled
from; the same tokens are left out again (Keep Sampling Mask: DeepSeek-V3.2, arXiv 2512.02556).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """Lists of tokens behind each other, one per row; an empty list stands for the vocabulary."""

    token_ids: Int[Tensor, " N"]
    lengths: Int[Tensor, " T"]
    """Tokens of each row; they add up to N."""

    def select(self, rows: Int[Tensor, " R"]) -> "Support":
        """Return the lists of some rows, which ascend."""
        is_selected = torch.zeros_like(self.lengths, dtype=torch.bool).index_fill_(0, rows, True)
        return Support(
            token_ids=self.token_ids[is_selected.repeat_interleave(self.lengths)],
            lengths=self.lengths[rows],
        )

    def excludes(self, rows: slice, columns: slice) -> Bool[Tensor, "R C"]:
        """Tell for a tile of rows and vocabulary which tokens had no chance."""
        lengths = self.lengths[rows]
        start = int(self.lengths[: rows.start].sum())
        column = self.token_ids[start : start + int(lengths.sum())] - columns.start
        row = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
        width = columns.stop - columns.start
        is_inside = (column >= 0) & (column < width)
        excluded = (lengths > 0)[:, None].repeat(1, width)
        excluded[row[is_inside], column[is_inside]] = False
        return excluded
