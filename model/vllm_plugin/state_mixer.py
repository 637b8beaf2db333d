"""The engine's mixer: every sequence's past is read from and written to vLLM's cache.

A forward of vLLM holds a batch of requests, those that add one token (decodes) first, those that
add several (prefills) behind. Decodes take one step of the recurrence each, all at once; prefills
are laid out as one padded batch and scanned in chunks from their cached state.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from vllm.config import CacheConfig, VllmConfig
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
from model.vllm_plugin.decode_step import decode_step


@dataclass(frozen=True, slots=True)
class StateMetadata:
    """Where the requests of one forward keep their state, for one group of KDA layers."""

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


class DeltaState(nn.Module, MambaBase):
    """Cached state of one KDA layer: the convolution's last inputs and the memory."""

    def __init__(self, config: ModelConfig, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        self.config = config
        self.prefix = prefix
        self.kv_cache = (torch.empty(0), torch.empty(0))
        # vLLM allocates a cache for, and binds it to, whatever is registered here.
        vllm_config.compilation_config.static_forward_context[prefix] = self

    @property
    def mamba_type(self) -> MambaAttentionBackendEnum:
        """Key under which vLLM looks up how states are copied."""
        return MambaAttentionBackendEnum.GDN_ATTN

    def get_state_shape(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of one request's state, see `state_shapes`."""
        return state_shapes(self.config)

    def get_state_dtype(self) -> tuple[torch.dtype, ...]:
        """Both float32."""
        return torch.float32, torch.float32

    def get_attn_backend(self) -> type[AttentionBackend]:
        """Our own: vLLM's needs GPU kernels."""
        return StateBackend


def state_shapes(config: ModelConfig) -> tuple[tuple[int, int], tuple[int, int, int]]:
    """Shapes of a KDA layer's state: convolution tail [width-1, 3*H*K] and memory [H, K, V]."""
    heads, width = config.num_attention_heads, config.kda_head_dim
    tail = (config.short_conv_kernel_size - 1, 3 * heads * width)
    return tail, (heads, width, width)


class StateMixer:
    """Mixes tokens with the past that vLLM keeps; see `model.mixer.Mixer`."""

    def __init__(self, config: ModelConfig, vllm_config: VllmConfig, prefix: str) -> None:
        """Register a cache for every layer.

        Args:
            config: Shape of the model.
            vllm_config: vLLM's configuration: sizes of the cache, and where layers register.
            prefix: Put before the layers' names.
        """
        cache_config: CacheConfig = vllm_config.cache_config
        self.deltas: dict[int, DeltaState] = {}
        self.attentions: dict[int, Attention] = {}
        for layer in range(config.num_hidden_layers):
            name = f"{prefix}.layers.{layer}.mixer"
            if config.is_full_attention(layer):
                width = config.qk_nope_head_dim + config.qk_rope_head_dim
                self.attentions[layer] = Attention(
                    config.num_attention_heads,
                    config.latent_width,
                    scale=width**-0.5,
                    num_kv_heads=1,
                    cache_config=cache_config,
                    prefix=name,
                )
            else:
                self.deltas[layer] = DeltaState(config, vllm_config, name)

    def delta(
        self,
        layer: KDALayer,
        qkv: Float[Tensor, "T 3*H*K"],
        g: Float[Tensor, "T H K"],
        beta: Float[Tensor, "T H"],
    ) -> Float[Tensor, "T H V"]:
        """See `Mixer`."""
        cache = self.deltas[layer.layer]
        output = torch.zeros_like(g)
        metadata = get_forward_context().attn_metadata
        if metadata is None:  # vLLM measures memory with a batch that has no requests
            return output
        assert isinstance(metadata, dict)
        batch: StateMetadata = metadata[cache.prefix]  # pyright: ignore[reportAssignmentType]  ours
        tails, states = cache.kv_cache
        if len(batch.fresh):
            tails[batch.fresh] = 0.0
            states[batch.fresh] = 0.0
        if batch.num_decodes:
            rows = slice(0, batch.num_decodes)
            slots = batch.slots[rows]
            output[rows] = decode_step(layer, qkv[rows], g[rows], beta[rows], tails, states, slots)
        if batch.prefills is not None:
            rows = slice(batch.num_decodes, batch.num_tokens)
            output[rows] = _prefill(layer, qkv[rows], g[rows], beta[rows], cache.kv_cache, batch)
        return output

    def latent_attention(
        self,
        layer: MLALayer,
        q: Float[Tensor, "T H R"],
        latent: Float[Tensor, "T R"],
    ) -> Float[Tensor, "T H R"]:
        """See `Mixer`. Multi-query attention, exact because the layer has no positions."""
        output = self.attentions[layer.layer](q.flatten(1), latent, latent)
        return output.view_as(q)


def _prefill(
    layer: KDALayer,
    qkv: Float[Tensor, "T 3*H*K"],
    g: Float[Tensor, "T H K"],
    beta: Float[Tensor, "T H"],
    cache: tuple[Tensor, ...],
    batch: StateMetadata,
) -> Float[Tensor, "T H V"]:
    """Scan the prefills from their cached state, and cache the state after their last token."""
    assert batch.prefills is not None
    tails, states = cache
    slots = batch.slots[batch.num_decodes :]
    tail = tails[slots]
    padded = batch.prefills.pad(qkv)
    q, k, v = layer.activate(padded, tail)
    pad = batch.prefills.pad
    output, state = delta_attention(q, k, v, pad(g), pad(beta), states[slots])
    states[slots] = state
    # The inputs at positions length .. length + width - 2 of [tail, padded] are the last ones.
    last = batch.prefill_lengths[:, None] + torch.arange(tail.shape[1])
    inputs = torch.cat([tail, padded], dim=1)
    tails[slots] = inputs.gather(1, last.unsqueeze(-1).expand(-1, -1, inputs.shape[2]))
    return batch.prefills.unpad(output)
