"""The model as transformers knows it: `AutoModelForCausalLM.from_pretrained(folder)`.

Importing this module registers the classes. The maths stands in `model.decoder`; here are the
padded batches, outputs and names that transformers and TRL expect.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import init
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from model.config import ModelConfig
from model.decoder import Decoder, init_module
from model.mixer import PackedMixer

HEAD_STD = 0.02
"""Initial scale of the output head: near-uniform predictions."""
MAX_POSITIONS = 1 << 20
"""Tokens of context that the configuration declares; without positions nothing depends on it."""


class HybridConfig(PreTrainedConfig):
    """`ModelConfig` as a transformers configuration; the fields of `shape` are its attributes."""

    model_type = "limosa_hybrid"
    has_no_defaults_at_init = True

    def __post_init__(self, **kwargs: Any) -> None:  # noqa: ANN401  transformers' signature
        shape = ModelConfig.from_json(kwargs)
        kwargs.setdefault("max_position_embeddings", MAX_POSITIONS)
        kwargs.setdefault("tie_word_embeddings", False)
        # What an engine sizes its attention cache by: one latent per token, shared by the heads.
        kwargs["head_dim"] = shape.latent_width
        kwargs["num_key_value_heads"] = 1
        super().__post_init__(**kwargs)

    @classmethod
    def from_shape(cls, shape: ModelConfig) -> "HybridConfig":
        """Wrap a shape."""
        return cls(architectures=["HybridForCausalLM"], **shape.to_json())

    @property
    def shape(self) -> ModelConfig:
        """The shape alone."""
        return ModelConfig.from_json(self.__dict__)

    @property
    def layers_block_type(self) -> list[str]:
        """Kind of cache each layer needs, in the engine's words."""
        shape = self.shape
        return [
            "attention" if shape.is_full_attention(layer) else "mamba"
            for layer in range(shape.num_hidden_layers)
        ]


class PaddedDecoder(Decoder):
    """A decoder whose `forward` takes a padded batch; `run` takes packed tokens."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]  transformers' signature
        self,
        input_ids: Int[Tensor, "B T"],
        attention_mask: Int[Tensor, "B T"] | None = None,
        **_unused: Any,  # noqa: ANN401  use_cache and the like
    ) -> BaseModelOutputWithPast:
        """Run a padded batch; padding is dropped before the first layer and zero in the result.

        Args:
            input_ids: Tokens.
            attention_mask: 1 where there is a token; all ones if None.
        """
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        present = mask.flatten().nonzero().squeeze(1)
        lengths = mask.bool().sum(dim=1)
        cu_seqlens = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        hidden = self.run(input_ids.flatten()[present], PackedMixer(cu_seqlens)).hidden
        padded = hidden.new_zeros(mask.numel(), hidden.shape[-1]).index_copy(0, present, hidden)
        return BaseModelOutputWithPast(last_hidden_state=padded.view(*mask.shape, -1))  # pyright: ignore[reportArgumentType]  declared as FloatTensor


class HybridForCausalLM(PreTrainedModel, GenerationMixin):
    """Decoder and output head."""

    config_class = HybridConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = False
    _no_split_modules = ["Block"]  # noqa: RUF012  transformers' declaration

    def __init__(self, config: HybridConfig) -> None:
        super().__init__(config)
        shape = config.shape
        self.model = PaddedDecoder(shape)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        self.post_init()
        init.normal_(self.lm_head.weight, std=HEAD_STD)

    def _init_weights(self, module: nn.Module) -> None:
        init_module(module)

    def get_input_embeddings(self) -> nn.Module:
        """Return the token embedding."""
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        """Return the output head."""
        return self.lm_head

    def forward(
        self,
        input_ids: Int[Tensor, "B T"],
        attention_mask: Int[Tensor, "B T"] | None = None,
        labels: Int[Tensor, "B T"] | None = None,
        logits_to_keep: int = 0,
        **kwargs: Any,  # noqa: ANN401  num_items_in_batch and the like
    ) -> CausalLMOutputWithPast:
        """Compute logits, and transformers' causal loss where there are labels.

        Args:
            input_ids: Tokens.
            attention_mask: 1 where there is a token; all ones if None.
            labels: Token ids, -100 where the loss does not look; shifted here, not by the caller.
            logits_to_keep: Only the last so many positions get logits; 0 for all.
            kwargs: Handed to the loss.
        """
        hidden: Float[Tensor, "B T D"] = self.model(input_ids, attention_mask).last_hidden_state
        logits = self.lm_head(hidden[:, -logits_to_keep:])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=logits.shape[-1], **kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=logits)


def build_model(shape: ModelConfig, seed: int) -> HybridForCausalLM:
    """Make a model with fresh float32 weights; the global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return HybridForCausalLM(HybridConfig.from_shape(shape))


def register() -> None:
    """Make the Auto classes of transformers know the model. Idempotent."""
    AutoConfig.register(HybridConfig.model_type, HybridConfig, exist_ok=True)
    AutoModelForCausalLM.register(HybridConfig, HybridForCausalLM, exist_ok=True)


register()
