"""The cache of an MLA layer's latents in vLLM, and the metadata of attention over it.

vLLM gives a global layer room for a key and a value per token. The latent is both, and
`kernels.latent_attention` stores it both ways.
"""

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec
from vllm.v1.kv_cache_layout import KVCacheLayout

from kernels.latent_attention import TILE, PagedBatch


class LatentMetadataBuilder(AttentionMetadataBuilder[PagedBatch]):
    """Builds a `PagedBatch` from vLLM's description of a batch."""

    def __init__(
        self,
        kv_cache_spec: KVCacheSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self,
        common_prefix_len: int,  # noqa: ARG002  vLLM's signature
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,  # noqa: ARG002  vLLM's signature
    ) -> PagedBatch:
        """See `AttentionMetadataBuilder`."""
        batch = common_attn_metadata
        return PagedBatch(batch.query_start_loc_cpu, batch.seq_lens, batch.block_table_tensor)


class LatentBackend(AttentionBackend):
    """Names the metadata builder; the mixer does the work itself."""

    @staticmethod
    def get_name() -> str:
        """Return the name in vLLM's logs."""
        return "LIMOSA_LATENT"

    @staticmethod
    def get_impl_cls() -> type:
        """Return nothing usable: the mixer calls the operation."""
        return object

    @staticmethod
    def get_builder_cls() -> type[LatentMetadataBuilder]:
        """Return the builder of each batch's metadata."""
        return LatentMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(
        kv_cache_spec: KVCacheSpec | None = None,  # noqa: ARG004  vLLM's signature
    ) -> list[int | MultipleOf]:
        """Return that a page holds whole tiles."""
        return [MultipleOf(TILE)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        """A page's tokens lie behind each other, as on every CPU backend."""
        return (KVCacheLayout.LBHNC,)


class LatentCache(nn.Module, AttentionLayerBase):
    """Cached latents of one MLA layer."""

    def __init__(self, width: int, vllm_config: VllmConfig, prefix: str) -> None:
        """Register the layer.

        Args:
            width: R, of a latent.
            vllm_config: vLLM's configuration, where layers register.
            prefix: Name of the layer.
        """
        super().__init__()
        self.width = width
        self.prefix = prefix
        self.pages = torch.empty(0)
        """[N, 2PR]: P tokens to a page."""
        vllm_config.compilation_config.static_forward_context[prefix] = self

    def get_attn_backend(self) -> type[AttentionBackend]:
        """Our own."""
        return LatentBackend

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> KVCacheSpec:
        """Describe a token's share of a page, as vLLM counts it for the whole model."""
        return FullAttentionSpec(
            block_size=vllm_config.cache_config.block_size,
            num_kv_heads=1,
            head_size=self.width,
            dtype=torch.float32,
        )

    def bind_kv_cache(self, kv_cache: Tensor) -> None:
        """Take the memory.

        Args:
            kv_cache: [N, 1, P, 2R]; pages may lie apart.
        """
        assert kv_cache[0].is_contiguous()
        self.kv_cache = kv_cache
        self.pages = kv_cache.as_strided(
            (len(kv_cache), kv_cache[0].numel()), (kv_cache.stride(0), 1)
        )
