"""The seam between the layers' maths and where a sequence's past is kept.

A layer computes everything that belongs to one token and hands the mixing of tokens to a `Mixer`.
The learner's `PackedMixer` mixes packed sequences from their beginning; the engine's mixer reads
and writes cached state. The maths of a layer exists once.
"""

import itertools
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from kernels.delta_attention import delta_attention
from kernels.lane import lane_of
from kernels.latent_attention import packed_latent_attention

if TYPE_CHECKING:
    from model.delta_layer import KDALayer
    from model.mla_layer import MLALayer


@runtime_checkable
class Mixer(Protocol):
    """Mixes the tokens of one forward; tokens of all sequences lie behind each other.

    C = 3HK is the width of a KDA layer's projections. Of an MLA layer, Q is the width of a head's
    query, R that of the latent with the shared key.
    """

    def delta(
        self,
        layer: "KDALayer",
        qkv: Float[Tensor, "T C"],
        g: Float[Tensor, "T H K"],
        beta: Float[Tensor, "T H"],
    ) -> Float[Tensor, "T H V"]:
        """Convolve and activate `qkv` (with `layer.activate`), then apply the delta rule."""
        ...

    def latent_attention(
        self,
        layer: "MLALayer",
        q: Float[Tensor, "T H Q"],
        latent: Float[Tensor, "T R"],
    ) -> Float[Tensor, "T H V"]:
        """Attend causally, in either of `layer`'s two forms, with scale `layer.scale`."""
        ...


class PackedMixer:
    """Mixes whole sequences, packed behind each other, from an empty past.

    The delta rule takes the pack as it is. So does attention in float32 on a CPU, absorbed and with
    the engine's loop, for the engine's bits. Elsewhere it runs over all sequences at once: tokens
    are laid out as [S, longest sequence], where causality hides the padding behind each sequence.
    """

    def __init__(self, cu_seqlens: Int[Tensor, " S1"]) -> None:
        """Describe a pack.

        Args:
            cu_seqlens: Start of each sequence in the pack, and the pack's length at the end:
                S + 1 numbers.
        """
        self.cu_seqlens = cu_seqlens
        bounds = cu_seqlens.tolist()
        lengths = [stop - start for start, stop in itertools.pairwise(bounds)]
        self.num_sequences = len(lengths)
        self.longest = max(lengths)
        self.num_tokens = bounds[-1]
        self._slots: Tensor | None = None
        if self.num_sequences * self.longest != self.num_tokens:
            token = torch.arange(self.num_tokens, device=cu_seqlens.device)
            gaps = torch.tensor(
                [row * self.longest - start for row, start in enumerate(bounds[:-1])],
                device=cu_seqlens.device,
            )
            sizes = torch.tensor(lengths, device=cu_seqlens.device)
            self._slots = token + gaps.repeat_interleave(sizes)

    def pad(self, x: Float[Tensor, " T *X"]) -> Float[Tensor, "S P *X"]:
        """Lay packed tokens out as one row per sequence, P = `longest`, zeros behind."""
        if self._slots is not None:
            rows = x.new_zeros(self.num_sequences * self.longest, *x.shape[1:])
            x = rows.index_copy(0, self._slots, x)
        return x.view(self.num_sequences, self.longest, *x.shape[1:])

    def unpad(self, x: Float[Tensor, "S P *X"]) -> Float[Tensor, " T *X"]:
        """Undo `pad`."""
        x = x.reshape(self.num_sequences * self.longest, *x.shape[2:])
        return x if self._slots is None else x.index_select(0, self._slots)

    def delta(
        self,
        layer: "KDALayer",
        qkv: Float[Tensor, "T C"],
        g: Float[Tensor, "T H K"],
        beta: Float[Tensor, "T H"],
    ) -> Float[Tensor, "T H V"]:
        """See `Mixer`."""
        q, k, v = layer.activate(qkv, self.cu_seqlens)
        output, _ = delta_attention(q, k, v, g, beta, self.cu_seqlens)
        return output

    def latent_attention(
        self,
        layer: "MLALayer",
        q: Float[Tensor, "T H Q"],
        latent: Float[Tensor, "T R"],
    ) -> Float[Tensor, "T H V"]:
        """See `Mixer`. Without the engine's loop, takes the form that needs fewer operations."""
        if lane_of(latent) == "cpu":
            mixed = packed_latent_attention(layer.absorb(q), latent, self.cu_seqlens, layer.scale)
            return layer.read_values(mixed)
        if layer.attends_cheaper_expanded:
            k, v = layer.expand(latent)
            # The fused attentions want one width; zeros beside a value are cut off again.
            widest = max(k.shape[-1], v.shape[-1])
            queries, keys, values = (self.pad(_widen(x, widest)).transpose(1, 2) for x in (q, k, v))
            output = scaled_dot_product_attention(
                queries, keys, values, is_causal=True, scale=layer.scale
            )
            return self.unpad(output.transpose(1, 2))[..., : v.shape[-1]]
        queries = self.pad(layer.absorb(q)).transpose(1, 2)
        latents = self.pad(latent).unsqueeze(1).expand(-1, queries.shape[1], -1, -1)
        output = scaled_dot_product_attention(
            queries, latents, latents, is_causal=True, scale=layer.scale
        )
        return layer.read_values(self.unpad(output.transpose(1, 2)))


def _widen(x: Tensor, width: int) -> Tensor:
    """Append zeros to the last dimension."""
    return x if x.shape[-1] == width else pad(x, (0, width - x.shape[-1]))
