"""The decoder: blocks joined by attention residuals over depth.

Takes packed tokens and a mixer, returns final hidden states and the experts each token passed.
Learner and engine run this same module; only their mixers differ.

The residual stream is not one running sum. Layers' outputs are summed inside blocks of
`attn_res_block_size` layers; what a sub-layer reads is a softmax mixture of the finished sums (the
embedding is the first) and the running one.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import init

from kernels.attention_residual import attention_residual
from model.config import ModelConfig
from model.delta_layer import KDALayer
from model.mixer import Mixer
from model.mla_layer import MLALayer
from model.moe_layer import FeedForward, MoELayer, Router

EMBEDDING_STD = 0.5
"""Initial scale of the embedding: that of a sub-layer's output, its partner in the mixtures."""


@dataclass(frozen=True, slots=True)
class DecoderOutput:
    """What a forward returns."""

    hidden: Float[Tensor, "T D"]
    """Final hidden states, normalised: the head's input."""
    expert_ids: Int[Tensor, "T L A"]
    """Experts each token passed, per MoE layer, int16."""


class PseudoQuery(nn.Linear):
    """The learned query [1, D] with which one sub-layer mixes over depth."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.hidden_size, 1, bias=False)


class Residual:
    """The candidates of one forward: finished block sums and the running sum."""

    def __init__(self, embedding: Float[Tensor, "T D"]) -> None:
        self.finished: list[Tensor] = []
        self.running = embedding

    def mix(self, norm: nn.RMSNorm, query: PseudoQuery, eps: float) -> Float[Tensor, "T D"]:
        """Mix all candidates with a sub-layer's pseudo-query."""
        candidates = [*self.finished, self.running]
        return attention_residual(candidates, query.weight.squeeze(0), norm.weight, eps)

    def add(self, output: Float[Tensor, "T D"]) -> None:
        """Add a sub-layer's output to the running sum."""
        self.running = self.running + output

    def restart(self, output: Float[Tensor, "T D"]) -> None:
        """Finish the running sum and begin the next with a sub-layer's output."""
        self.finished.append(self.running)
        self.running = output


class Block(nn.Module):
    """One layer: token mixing, then feed-forward, each reading an attention residual."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.eps = eps
        self.starts_sum = layer % config.attn_res_block_size == 0
        self.self_attention_res_norm = nn.RMSNorm(hidden, eps=eps)
        self.self_attention_res_proj = PseudoQuery(config)
        self.input_layernorm = nn.RMSNorm(hidden, eps=eps)
        mixing = MLALayer if config.is_full_attention(layer) else KDALayer
        self.self_attn = mixing(config, layer)
        self.mlp_res_norm = nn.RMSNorm(hidden, eps=eps)
        self.mlp_res_proj = PseudoQuery(config)
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps=eps)
        self.has_experts = config.has_experts(layer)
        if self.has_experts:
            self.block_sparse_moe = MoELayer(config)
        else:
            self.mlp = FeedForward(config, config.intermediate_size)

    def forward(
        self, residual: Residual, mixer: Mixer, expert_ids: Int[Tensor, "T A"] | None
    ) -> Int[Tensor, "T A"] | None:
        """Advance `residual` by this layer; return the experts chosen, None in a dense layer."""
        x = residual.mix(self.self_attention_res_norm, self.self_attention_res_proj, self.eps)
        mixed = self.self_attn(self.input_layernorm(x), mixer)
        if self.starts_sum:
            residual.restart(mixed)
        else:
            residual.add(mixed)

        x = residual.mix(self.mlp_res_norm, self.mlp_res_proj, self.eps)
        x = self.post_attention_layernorm(x)
        if not self.has_experts:
            residual.add(self.mlp(x))
            return None
        output, chosen = self.block_sparse_moe(x, expert_ids)
        residual.add(output)
        return chosen


class Decoder(nn.Module):
    """Embedding, blocks and final norm; the output head stands beside it (see `HybridForCausalLM`).

    Parameter names are those of the published checkpoints, below the prefix `model.`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.shape = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            Block(config, layer) for layer in range(config.num_hidden_layers)
        )
        self.output_attn_res_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.output_attn_res_proj = PseudoQuery(config)
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self,
        token_ids: Int[Tensor, " T"],
        mixer: Mixer,
        expert_ids: Int[Tensor, "T L A"] | None = None,
    ) -> DecoderOutput:
        """See `run`."""
        return self.run(token_ids, mixer, expert_ids)

    def run(
        self,
        token_ids: Int[Tensor, " T"],
        mixer: Mixer,
        expert_ids: Int[Tensor, "T L A"] | None = None,
    ) -> DecoderOutput:
        """Run the tokens of one forward through all layers.

        Args:
            token_ids: Tokens of all sequences, behind each other.
            mixer: Knows where sequences begin, and their past.
            expert_ids: Choice of experts to replay per MoE layer; tokens with -1 choose anew.
        """
        residual = Residual(self.embed_tokens(token_ids))
        chosen: list[Tensor] = []
        for block in self.layers:
            replay = None
            if expert_ids is not None and block.has_experts:
                replay = expert_ids[:, len(chosen)]
            experts = block(residual, mixer, replay)
            if experts is not None:
                chosen.append(experts.to(torch.int16))
        mixed = residual.mix(
            self.output_attn_res_norm, self.output_attn_res_proj, self.shape.rms_norm_eps
        )
        empty = token_ids.new_empty(
            len(token_ids), 0, self.shape.num_experts_per_token, dtype=torch.int16
        )
        return DecoderOutput(self.norm(mixed), torch.stack(chosen, dim=1) if chosen else empty)


def init_module(module: nn.Module) -> None:
    """Initialise the parameters that `module` itself owns; apply it to every module of a model.

    Projections are normal with standard deviation fan_in^(-1/2); pseudo-queries of the attention
    residuals start at zero (a uniform mixture), norms at one, the router's correction at zero.
    """
    if isinstance(module, nn.Embedding):
        init.normal_(module.weight, std=EMBEDDING_STD)
    elif isinstance(module, PseudoQuery):
        init.zeros_(module.weight)
    elif isinstance(module, (nn.Linear, nn.Conv1d, Router)):
        init.normal_(module.weight, std=math.prod(module.weight.shape[1:]) ** -0.5)
    elif isinstance(module, nn.RMSNorm):
        init.ones_(module.weight)
    elif isinstance(module, KDALayer):
        module.init_gates()
    if isinstance(module, Router):
        init.zeros_(module.get_buffer("e_score_correction_bias"))
