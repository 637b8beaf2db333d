"""The shape of a model: numbers only, checked, importable without torch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

MIN_KV_LORA_RANK = 32
"""Narrowest latent for which the CPU engine has an attention kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and constants of the hybrid model. Names follow the published checkpoints.

    Layers are numbered from 1 in `full_attn_layers` alone, as published; from 0 everywhere else.

    Raises:
        ValueError: sizes that do not fit together; the message says which and what to change.
    """

    vocab_size: int
    """W, tokens."""
    hidden_size: int
    """D, width of the residual stream."""
    num_hidden_layers: int
    """L."""
    num_attention_heads: int
    """H, of KDA and MLA layers alike."""
    full_attn_layers: tuple[int, ...]
    """Layers with MLA, counted from 1; the others have KDA. The last layer is one of them."""
    attn_res_block_size: int
    """Layers whose outputs are summed into one candidate of the attention residuals."""
    rms_norm_eps: float = 1e-5
    """Added to every mean square."""

    kda_head_dim: int
    """K = V of a KDA head, and the rank of its decay projection."""
    short_conv_kernel_size: int = 4
    """Taps of the causal convolutions of q, k and v."""
    gate_lower_bound: float = -5.0
    """Lowest log-decay per token and channel, nats."""

    q_lora_rank: int
    """Width of MLA's compressed queries."""
    kv_lora_rank: int
    """R, width of MLA's latent: what is cached per token."""
    qk_nope_head_dim: int
    """Query and key width of an MLA head that passes through the latent."""
    qk_rope_head_dim: int = 0
    """Query and key width next to the latent, shared by the heads. Never rotated: no positions."""
    v_head_dim: int
    """Value width of an MLA head."""

    intermediate_size: int
    """Width of the dense feed-forward layers."""
    first_k_dense_replace: int = 1
    """Layers from the first that have a dense feed-forward instead of experts."""
    num_experts: int
    """E, routed experts per layer."""
    num_experts_per_token: int
    """A, experts chosen per token."""
    num_shared_experts: int = 1
    """Experts that every token passes, fused into one of that many times the width."""
    routed_expert_hidden_size: int
    """Width of the latent in which the routed experts work."""
    moe_intermediate_size: int
    """Width of one expert."""
    activation_situ_beta: float = 4.0
    """Bound of SiTU-GLU's gate branch."""
    activation_situ_linear_beta: float = 25.0
    """Bound of SiTU-GLU's linear branch."""

    def __post_init__(self) -> None:
        self._check_positive()
        self._check_layers()
        if not -5.0 <= self.gate_lower_bound < 0.0:
            raise ValueError(
                f"gate_lower_bound = {self.gate_lower_bound} is outside [-5, 0): the chunked scan "
                "would leave float32's range"
            )
        if self.kv_lora_rank < MIN_KV_LORA_RANK:
            raise ValueError(
                f"kv_lora_rank = {self.kv_lora_rank} is below {MIN_KV_LORA_RANK}, the narrowest "
                "latent that the engine's attention can cache"
            )
        if self.num_experts_per_token > self.num_experts:
            raise ValueError(
                f"num_experts_per_token = {self.num_experts_per_token} exceeds "
                f"num_experts = {self.num_experts}"
            )

    def _check_positive(self) -> None:
        may_be_zero = {"qk_rope_head_dim", "first_k_dense_replace"}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("full_attn_layers", "gate_lower_bound"):
                continue
            if value < 0 or (value == 0 and field.name not in may_be_zero):
                raise ValueError(f"{field.name} = {value} must be positive")

    def _check_layers(self) -> None:
        layers, last = self.full_attn_layers, self.num_hidden_layers
        if list(layers) != sorted(set(layers)):
            raise ValueError(f"full_attn_layers = {list(layers)} must increase")
        if not layers or layers[-1] != last or layers[0] < 1:
            raise ValueError(
                f"full_attn_layers = {list(layers)} must lie in 1 .. {last} and end with the last "
                f"layer, {last}: that one is global"
            )
        if self.first_k_dense_replace > last:
            raise ValueError(
                f"first_k_dense_replace = {self.first_k_dense_replace} exceeds "
                f"num_hidden_layers = {last}"
            )

    def is_full_attention(self, layer: int) -> bool:
        """Whether layer `layer` (from 0) mixes tokens with MLA; with KDA otherwise."""
        return layer + 1 in self.full_attn_layers

    def has_experts(self, layer: int) -> bool:
        """Whether layer `layer` (from 0) has routed experts."""
        return layer >= self.first_k_dense_replace

    @property
    def num_moe_layers(self) -> int:
        """Layers with routed experts: the L of recorded expert ids."""
        return self.num_hidden_layers - self.first_k_dense_replace

    @property
    def latent_width(self) -> int:
        """What an MLA layer caches per token: the latent and the shared key, in numbers."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        values = asdict(self)
        values["full_attn_layers"] = list(self.full_attn_layers)
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "ModelConfig":
        """Read the fields from a checkpoint's JSON; keys of other programs are left alone.

        Raises:
            ValueError: a field is missing or of the wrong type, or sizes do not fit together.
        """
        known = {}
        for field in fields(cls):
            if field.name not in values:
                continue
            value = values[field.name]
            if field.type is float and isinstance(value, int):
                value = float(value)
            if field.name == "full_attn_layers" and isinstance(value, (list, tuple)):
                value = tuple(value)
                matches = all(type(layer) is int for layer in value)
            else:
                matches = type(value) is field.type
            if not matches:
                raise ValueError(f"{field.name} = {value!r} is of the wrong type")
            known[field.name] = value
        try:
            return cls(**known)
        except TypeError as error:
            raise ValueError(f"model configuration is incomplete: {error}") from None
