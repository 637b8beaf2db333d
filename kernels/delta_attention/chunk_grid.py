"""Which chunk holds which tokens: the grid that the Triton kernels are launched over."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from kernels.delta_attention.tiles import CHUNK_TOKENS


@dataclass(frozen=True, slots=True)
class ChunkGrid:
    """The chunks of a pack: positions 0 .. 63 of a sequence, 64 .. 127, and so on."""

    table: Int[Tensor, "N 4"]
    """Of each chunk: the token of its first row, its first token, its end, its sequence."""
    first_chunks: Int[Tensor, " S1"]
    """First chunk of each sequence, and the number of chunks."""

    def __len__(self) -> int:
        """Number of chunks."""
        return len(self.table)

    @classmethod
    def of(
        cls, cu_seqlens: Int[Tensor, " S1"], starts: Int[Tensor, " S"] | None, device: torch.device
    ) -> "ChunkGrid":
        """Lay the grid over packed sequences.

        Args:
            cu_seqlens: Start of each sequence in the pack, and the number of tokens.
            starts: Position of each sequence's first token; 0 if None.
            device: Where the kernels run.
        """
        bounds = cu_seqlens.to("cpu", torch.int64)
        begin, end = bounds[:-1], bounds[1:]
        skipped = torch.zeros_like(begin)
        if starts is not None:
            skipped = starts.to("cpu", torch.int64) % CHUNK_TOKENS
        counts = (skipped + end - begin + CHUNK_TOKENS - 1) // CHUNK_TOKENS
        first_chunks = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        sequence = torch.repeat_interleave(torch.arange(len(counts)), counts)
        nth = torch.arange(len(sequence)) - first_chunks[sequence]
        origin = (begin - skipped)[sequence] + CHUNK_TOKENS * nth
        table = torch.stack(
            [
                origin,
                torch.maximum(origin, begin[sequence]),
                torch.minimum(origin + CHUNK_TOKENS, end[sequence]),
                sequence,
            ],
            dim=1,
        )
        return cls(table.to(device), first_chunks.to(device))
