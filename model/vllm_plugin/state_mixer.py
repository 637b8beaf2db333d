"""The engine's mixer: every sequence's past is read from and written to vLLM's cache.

A forward of vLLM holds a batch of requests, those that add one token (decodes) first, those that
add several (prefills) behind. Decodes take one step of the recurrence each, all at once; prefills
are scanned in chunks, as one pack, from their cached state.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.attention.backends.utils import (
    mamba_get_block_table_tensor,
    split_decodes_and_prefills,
)
from vllm.v1.kv_cache_interface import KVCacheSpec, MambaSpec

from kernels.delta_attention import delta_attention
from model.config import ModelConfig
from model.delta_layer import KDALayer
from model.mixer import PackedMixer
from model.mla_layer import MLALayer
from model.vllm_plugin.cache_shape import kda_spans, state_shapes
from model.vllm_plugin.decode_step import decode_step


@dataclass(frozen=True, slots=True)
class StateMetadata:
    """Where the requests of one forward keep their state."""

    slots: Int[Tensor, " B"]
    """Cache page of each request, int64."""
    fresh: Int[Tensor, " F"]
    """Pages of requests that start now: they may hold another request's state."""
    num_decodes: int
    """Requests with one token, the first of the batch: as many rows."""
    num_tokens: int
    """Rows of the batch that hold tokens."""
    prefills: PackedMixer | None
    """Layout of the requests behind the decodes; None if there is none."""
    prefill_lengths: Int[Tensor, " S"]
    """Tokens that each of those requests adds."""
    prefill_starts: Int[Tensor, " S"]
    """Absolute position of the first of them."""


class StateMetadataBuilder(AttentionMetadataBuilder[StateMetadata]):
    """Builds `StateMetadata` from vLLM's description of a batch."""

    reorder_batch_threshold = 1

    def __init__(
        self,
        kv_cache_spec: KVCacheSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        assert isinstance(kv_cache_spec, MambaSpec)
        self.cache_mode = vllm_config.cache_config.mamba_cache_mode

    def build(
        self,
        common_prefix_len: int,  # noqa: ARG002  vLLM's signature
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,  # noqa: ARG002  vLLM's signature
    ) -> StateMetadata:
        """See `AttentionMetadataBuilder`."""
        batch = common_attn_metadata
        slots = mamba_get_block_table_tensor(
            batch.block_table_tensor, batch.seq_lens, self.kv_cache_spec, self.cache_mode
        )[:, 0].long()
        starts = batch.query_start_loc_cpu
        lengths = starts[1:] - starts[:-1]
        num_decodes, num_prefills, _, _ = split_decodes_and_prefills(batch, decode_threshold=1)
        prefill_starts = starts[num_decodes:] - starts[num_decodes]
        return StateMetadata(
            slots=slots,
            fresh=slots[batch.seq_lens == lengths],
            num_decodes=num_decodes,
            num_tokens=batch.num_actual_tokens,
            prefills=PackedMixer(prefill_starts) if num_prefills else None,
            prefill_lengths=lengths[num_decodes:].long(),
            prefill_starts=(batch.seq_lens - lengths)[num_decodes:],
        )


class StateBackend(AttentionBackend):
    """Names the metadata builder; the layers do the work themselves."""

    @staticmethod
    def get_name() -> str:
        """Return the name in vLLM's logs."""
        return "LIMOSA_STATE"

    @staticmethod
    def get_impl_cls() -> type:
        """Return nothing usable: `DeltaState` is not called through an implementation class."""
        return object

    @staticmethod
    def get_builder_cls() -> type[StateMetadataBuilder]:
        """Return the builder of each batch's metadata."""
        return StateMetadataBuilder

    @classmethod
    def is_ssm(cls) -> bool:
        """Return that the cache holds recurrent states."""
        return True


class DeltaStates(nn.Module, MambaBase):
    """Cached states of neighbouring KDA layers: one page per conversation holds them all.

    vLLM keeps books per kind of layer and position between the attention layers, and its scheduler
    pays for each: KDA layers that stand together are one layer to it.
    """

    def __init__(
        self, config: ModelConfig, num_layers: int, vllm_config: VllmConfig, prefix: str
    ) -> None:
        super().__init__()
        self.shapes = state_shapes(config, num_layers)
        self.prefix = prefix
        self.kv_cache = (torch.empty(0), torch.empty(0))
        # vLLM allocates a cache for, and binds it to, whatever is registered here.
        vllm_config.compilation_config.static_forward_context[prefix] = self

    @property
    def mamba_type(self) -> MambaAttentionBackendEnum:
        """Key under which vLLM looks up how states are copied."""
        return MambaAttentionBackendEnum.GDN_ATTN

    def get_state_shape(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of one conversation's states."""
        return self.shapes

    def get_state_dtype(self) -> tuple[torch.dtype, ...]:
        """Both float32."""
        return torch.float32, torch.float32

    def get_attn_backend(self) -> type[AttentionBackend]:
        """Our own: vLLM's needs GPU kernels."""
        return StateBackend

    def clear(self, slots: Int[Tensor, " F"]) -> None:
        """Zero the pages of conversations that begin."""
        for part in self.kv_cache:
            part[slots] = 0.0


class StateMixer:
    """Mixes tokens with the past that vLLM keeps; see `model.mixer.Mixer`."""

    def __init__(self, config: ModelConfig, vllm_config: VllmConfig, prefix: str) -> None:
        """Register a cache for every layer.

        Args:
            config: Shape of the model.
            vllm_config: vLLM's configuration: sizes of the cache, and where layers register.
            prefix: Put before the layers' names.
        """
        self.places: dict[int, tuple[DeltaStates, int]] = {}
        """KDA layer to its cache and its place in there."""
        self.attentions: dict[int, Attention] = {}
        for span in kda_spans(config):
            states = DeltaStates(config, len(span), vllm_config, f"{prefix}.layers.{span[0]}.state")
            self.places.update({layer: (states, place) for place, layer in enumerate(span)})
        for number in config.full_attn_layers:
            self.attentions[number - 1] = Attention(
                config.num_attention_heads,
                config.latent_width,
                scale=(config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5,
                num_kv_heads=1,
                cache_config=vllm_config.cache_config,
                prefix=f"{prefix}.layers.{number - 1}.attention",
            )

    def delta(
        self,
        layer: KDALayer,
        qkv: Float[Tensor, "T 3*H*K"],
        g: Float[Tensor, "T H K"],
        beta: Float[Tensor, "T H"],
    ) -> Float[Tensor, "T H V"]:
        """See `Mixer`."""
        states, place = self.places[layer.layer]
        metadata = get_forward_context().attn_metadata
        if metadata is None:  # vLLM measures memory with a batch that has no requests
            return torch.zeros_like(g)
        assert isinstance(metadata, dict)
        batch: StateMetadata = metadata[states.prefix]  # pyright: ignore[reportAssignmentType]  ours
        if place == 0 and len(batch.fresh):
            states.clear(batch.fresh)
        tails, memories = (part[:, place] for part in states.kv_cache)
        outputs = []
        if batch.num_decodes:
            rows = slice(0, batch.num_decodes)
            slots = batch.slots[rows]
            tail, new = tails[slots], qkv[rows].unsqueeze(1)
            q, k, v = (x.squeeze(1) for x in layer.activate(new, tail))
            outputs.append(decode_step(q, k, v, g[rows], beta[rows], memories, slots))
            tails[slots] = torch.cat([tail[:, 1:], new], dim=1)
        if batch.prefills is not None:
            rows = slice(batch.num_decodes, batch.num_tokens)
            outputs.append(
                _prefill(layer, qkv[rows], g[rows], beta[rows], (tails, memories), batch)
            )
        if batch.num_tokens < len(qkv):  # vLLM may pad a batch
            outputs.append(torch.zeros_like(g[batch.num_tokens :]))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def latent_attention(
        self,
        layer: MLALayer,
        q: Float[Tensor, "T H Q"],
        latent: Float[Tensor, "T R"],
    ) -> Float[Tensor, "T H V"]:
        """See `Mixer`. Absorbed: multi-query attention over the cached latents."""
        absorbed = layer.absorb(q)
        output = self.attentions[layer.layer](absorbed.flatten(1), latent, latent)
        return layer.read_values(output.view_as(absorbed))


def _prefill(
    layer: KDALayer,
    qkv: Float[Tensor, "T 3*H*K"],
    g: Float[Tensor, "T H K"],
    beta: Float[Tensor, "T H"],
    cache: tuple[Float[Tensor, "N width-1 3*H*K"], Float[Tensor, "N H K V"]],
    batch: StateMetadata,
) -> Float[Tensor, "T H V"]:
    """Scan the prefills from their cached state, and cache the state after their last token."""
    assert batch.prefills is not None
    tails, memories = cache
    slots = batch.slots[batch.num_decodes :]
    pad = batch.prefills.pad
    tail, padded = tails[slots], pad(qkv)
    q, k, v = layer.activate(padded, tail)
    q, k, v = (batch.prefills.unpad(x) for x in (q, k, v))
    bounds, starts = batch.prefills.cu_seqlens, batch.prefill_starts
    output, memories[slots] = delta_attention(q, k, v, g, beta, bounds, memories[slots], starts)
    # The inputs at positions length .. length + width - 2 of [tail, padded] are the last ones.
    last = batch.prefill_lengths[:, None] + torch.arange(tail.shape[1])
    inputs = torch.cat([tail, padded], dim=1)
    tails[slots] = inputs.gather(1, last.unsqueeze(-1).expand(-1, -1, inputs.shape[2]))
    return output
