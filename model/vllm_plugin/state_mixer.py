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
from kernels.short_conv import last_inputs
from model.config import ModelConfig
from model.delta_layer import KDALayer
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
    cu_seqlens: Int[Tensor, " B1"]
    """First row of each request, and `num_tokens` at the end."""
    prefills: "Prefills | None"
    """The requests behind the decodes; None if there is none."""


@dataclass(frozen=True, slots=True)
class Prefills:
    """Requests that add several tokens, packed behind each other."""

    cu_seqlens: Int[Tensor, " S1"]
    """First token of each request in the pack, and the pack's length at the end."""
    starts: Int[Tensor, " S"]
    """Absolute position of each request's first new token."""


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
        prefills = Prefills(
            cu_seqlens=starts[num_decodes:] - starts[num_decodes],
            starts=(batch.seq_lens - lengths)[num_decodes:],
        )
        return StateMetadata(
            slots=slots,
            fresh=slots[batch.seq_lens == lengths],
            num_decodes=num_decodes,
            num_tokens=batch.num_actual_tokens,
            cu_seqlens=starts,
            prefills=prefills if num_prefills else None,
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
        q, k, v = _activate(layer, qkv, tails, batch)
        outputs = []
        if batch.num_decodes:
            rows = slice(0, batch.num_decodes)
            inputs = q[rows], k[rows], v[rows], g[rows], beta[rows]
            outputs.append(decode_step(*inputs, memories, batch.slots[rows]))
        if batch.prefills is not None:
            rows = slice(batch.num_decodes, batch.num_tokens)
            inputs = q[rows], k[rows], v[rows], g[rows], beta[rows]
            outputs.append(_prefill(*inputs, memories, batch))
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


def _activate(
    layer: KDALayer,
    qkv: Float[Tensor, "T 3*H*K"],
    tails: Float[Tensor, "N width-1 3*H*K"],
    batch: StateMetadata,
) -> tuple[Float[Tensor, "T H K"], Float[Tensor, "T H K"], Float[Tensor, "T H V"]]:
    """Convolve and activate the batch behind its cached tails, and cache the new tails."""
    qkv = qkv[: batch.num_tokens]
    before = tails[batch.slots]
    tails[batch.slots] = last_inputs(qkv, batch.cu_seqlens, before, layer.conv_width)
    return layer.activate(qkv, batch.cu_seqlens, before)


def _prefill(
    q: Float[Tensor, "T H K"],
    k: Float[Tensor, "T H K"],
    v: Float[Tensor, "T H V"],
    g: Float[Tensor, "T H K"],
    beta: Float[Tensor, "T H"],
    memories: Float[Tensor, "N H K V"],
    batch: StateMetadata,
) -> Float[Tensor, "T H V"]:
    """Scan the prefills from their cached state, and cache the state after their last token."""
    assert batch.prefills is not None
    slots = batch.slots[batch.num_decodes :]
    pack = batch.prefills
    output, memories[slots] = delta_attention(
        q, k, v, g, beta, pack.cu_seqlens, memories[slots], pack.starts
    )
    return output
