"""The engine's mixer: every sequence's past is read from and written to vLLM's cache.

A forward of vLLM holds a batch of requests, some that add one token and some that add many. The
mixer makes no difference between them: each continues from what is cached of it.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.attention.backends.utils import mamba_get_block_table_tensor
from vllm.v1.kv_cache_interface import KVCacheSpec, MambaSpec

from kernels.delta_attention.cached import CachedSequences, cached_delta_attention
from kernels.latent_attention import PagedBatch, paged_latent_attention
from kernels.short_conv import last_inputs
from model.config import ModelConfig
from model.delta_layer import KDALayer
from model.mla_layer import MLALayer
from model.vllm_plugin.cache_shape import kda_spans, state_shapes
from model.vllm_plugin.latent_cache import LatentCache


@dataclass(frozen=True, slots=True)
class StateMetadata:
    """Where the requests of one forward keep their state."""

    sequences: CachedSequences
    """Cache page of each request, and its rows in the batch."""
    fresh: Int[Tensor, " F"]
    """Pages of requests that start now: they may hold another request's state."""
    num_tokens: int
    """Rows of the batch that hold tokens."""


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
        return StateMetadata(
            sequences=CachedSequences(slots, starts, batch.seq_lens - lengths),
            fresh=slots[batch.seq_lens == lengths],
            num_tokens=batch.num_actual_tokens,
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
        self.latents: dict[int, LatentCache] = {}
        """MLA layer to its cache."""
        for span in kda_spans(config):
            states = DeltaStates(config, len(span), vllm_config, f"{prefix}.layers.{span[0]}.state")
            self.places.update({layer: (states, place) for place, layer in enumerate(span)})
        for number in config.full_attn_layers:
            name = f"{prefix}.layers.{number - 1}.attention"
            self.latents[number - 1] = LatentCache(config.latent_width, vllm_config, name)

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
        q, k, v = _activate(layer, qkv, tails, batch)
        output = torch.zeros_like(g)  # vLLM may pad a batch
        rows = slice(0, batch.num_tokens)
        output[rows] = cached_delta_attention(
            q, k, v, g[rows], beta[rows], memories, batch.sequences
        )
        return output

    def latent_attention(
        self,
        layer: MLALayer,
        q: Float[Tensor, "T H Q"],
        latent: Float[Tensor, "T R"],
    ) -> Float[Tensor, "T H V"]:
        """See `Mixer`. Absorbed: all heads attend over the cached latents."""
        absorbed = layer.absorb(q)
        output = torch.zeros_like(absorbed)
        cache = self.latents[layer.layer]
        metadata = get_forward_context().attn_metadata
        if metadata is not None:
            assert isinstance(metadata, dict)
            batch: PagedBatch = metadata[cache.prefix]  # pyright: ignore[reportAssignmentType]  ours
            rows = slice(0, int(batch.cu_seqlens[-1]))
            output[rows] = paged_latent_attention(
                absorbed[rows], latent[rows], cache.pages, batch, layer.scale
            )
        return layer.read_values(output)


def _activate(
    layer: KDALayer,
    qkv: Float[Tensor, "T 3*H*K"],
    tails: Float[Tensor, "N width-1 3*H*K"],
    batch: StateMetadata,
) -> tuple[Float[Tensor, "T H K"], Float[Tensor, "T H K"], Float[Tensor, "T H V"]]:
    """Convolve and activate the batch behind its cached tails, and cache the new tails."""
    qkv = qkv[: batch.num_tokens]
    slots, cu_seqlens = batch.sequences.slots, batch.sequences.cu_seqlens
    before = tails[slots]
    tails[slots] = last_inputs(qkv, cu_seqlens, before, layer.conv_width)
    return layer.activate(qkv, cu_seqlens, before)
