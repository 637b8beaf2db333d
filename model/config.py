"""The shape of a model: numbers only, checked, importable without torch.

`from_json` reads and `to_json` writes the fields of a published `config.json`: those of the text
model (`model_type` "kimi_linear"), alone or below `text_config` (`model_type` "kimi_k3").
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from kernels.gate_bound import check_gate_lower_bound

MIN_KV_LORA_RANK = 32
"""Narrowest latent for which the CPU engine has an attention kernel."""
TEXT_CONFIG = "text_config"
"""Where a model with a vision tower keeps the fields of its text model."""
LINEAR_ATTENTION = "linear_attn_config"
"""Where published configurations keep the layer pattern and what concerns KDA alone."""
PUBLISHED_NAMES = {
    "full_attn_layers": "full_attn_layers",
    "kda_head_dim": "head_dim",
    "short_conv_kernel_size": "short_conv_kernel_size",
    "gate_lower_bound": "gate_lower_bound",
}
"""Fields of `ModelConfig` that stand in LINEAR_ATTENTION, and their names there."""
PACKED_FORMAT = "mxfp4-pack-quantized"
"""`format` of the one `quantization_config` whose weights can be read (see `model.mxfp4`)."""
CONSTANTS: dict[str, tuple[Any, Any]] = {
    "hidden_act": ("situ", "silu"),
    "latent_moe_use_norm": (True, False),
    "mla_use_nope": (True, False),
    "mla_use_output_gate": (True, False),
    "moe_layer_freq": (1, 1),
    "moe_renormalize": (True, True),
    "moe_router_activation_func": ("sigmoid", "sigmoid"),
    "num_expert_group": (1, 1),
    "routed_scaling_factor": (1.0, 1.0),
    "tie_word_embeddings": (False, False),
    "topk_group": (1, 1),
    "topk_method": ("noaux_tc", "noaux_tc"),
}
"""Published fields with one value that is implemented: that value, and what an absent field means
to the published configuration class."""


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
        check_gate_lower_bound(self.gate_lower_bound)
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
        """Return the text model's fields of a published `config.json`, without `model_type`."""
        values = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in PUBLISHED_NAMES
        }
        values |= {name: value for name, (value, _) in CONSTANTS.items()}
        global_layers = list(self.full_attn_layers)
        pattern = range(1, self.num_hidden_layers + 1)
        values[LINEAR_ATTENTION] = {
            "full_attn_layers": global_layers,
            "gate_lower_bound": self.gate_lower_bound,
            "head_dim": self.kda_head_dim,
            "kda_layers": [layer for layer in pattern if layer not in global_layers],
            "num_heads": self.num_attention_heads,
            "short_conv_kernel_size": self.short_conv_kernel_size,
            "use_full_rank_gate": True,
        }
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "ModelConfig":
        """Read a published `config.json`; fields that do not shape the text model are left alone.

        Raises:
            ValueError: a field is missing, of the wrong type, or asks for what is not implemented;
                or sizes do not fit together.
        """
        _check_quantization(values)
        if TEXT_CONFIG in values:
            values = _section(values, TEXT_CONFIG)
            _check_quantization(values)
        linear = _section(values, LINEAR_ATTENTION)
        known, missing = {}, []
        for field in fields(cls):
            source = linear if field.name in PUBLISHED_NAMES else values
            name = PUBLISHED_NAMES.get(field.name, field.name)
            if source.get(name) is None:
                missing.append(name)
                continue
            known[field.name] = _typed(name, source[name], field.type)
        if missing:
            raise ValueError(f"model configuration is incomplete: it lacks {', '.join(missing)}")
        _check_constants(values)
        config = cls(**known)
        _check_linear_attention(config, linear)
        return config


def _section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = values.get(name)
    if not isinstance(section, Mapping):
        raise ValueError(f"model configuration is incomplete: {name} = {section!r} is no object")  # noqa: TRY004  bad input
    return section


def _check_quantization(values: Mapping[str, Any]) -> None:
    quantization = values.get("quantization_config")
    if quantization is None:
        return
    found = quantization.get("format") if isinstance(quantization, Mapping) else quantization
    if found != PACKED_FORMAT:
        raise ValueError(
            f"quantization_config with format = {found!r} is not implemented, only "
            f"{PACKED_FORMAT!r}"
        )


def _check_constants(values: Mapping[str, Any]) -> None:
    """Refuse what is not implemented, also where a field's absence asks for it."""
    for name, (implemented, if_absent) in CONSTANTS.items():
        found = values.get(name, if_absent)
        if found != implemented:
            text = f"{found!r}" if name in values else f"{found!r} (it is absent)"
            raise ValueError(f"{name} = {text} is not implemented, only {implemented!r}")


def _typed(name: str, value: Any, kind: Any) -> Any:  # noqa: ANN401  JSON in, a field out
    if kind is float and type(value) is int:
        return float(value)
    if name == "full_attn_layers":
        matches = isinstance(value, (list, tuple)) and all(type(layer) is int for layer in value)
        value = tuple(value) if matches else value
    else:
        matches = type(value) is kind
    if not matches:
        raise ValueError(f"{name} = {value!r} is of the wrong type")
    return value


def _check_linear_attention(config: ModelConfig, linear: Mapping[str, Any]) -> None:
    """Check the fields of LINEAR_ATTENTION that say again what others say."""
    if linear.get("use_full_rank_gate") is not True:
        raise ValueError("use_full_rank_gate is not true: a low-rank gate is not implemented")
    if linear.get("num_heads") != config.num_attention_heads:
        raise ValueError(
            f"num_heads = {linear.get('num_heads')} of {LINEAR_ATTENTION} is not "
            f"num_attention_heads = {config.num_attention_heads}"
        )
    expected = config.to_json()[LINEAR_ATTENTION]["kda_layers"]
    if linear.get("kda_layers") != expected:
        raise ValueError(
            f"kda_layers = {linear.get('kda_layers')} are not the layers that full_attn_layers "
            f"leaves: {expected}"
        )
