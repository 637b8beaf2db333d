"""Gated multi-head latent attention without positions.

All heads attend over one latent per token. With W_uk and W_uv the per-head halves of `kv_b_proj`,
a head's score q_h . (c W_uk,h) equals (q_h W_uk,h^T) . c, and its output sum_s p_s (c_s W_uv,h)
equals (sum_s p_s c_s) W_uv,h: keys and values per head are never made, and only c is cached. That
is exact because no rotation stands between them.

    q = norm(x Wqa) Wqb                          c = norm(x Wkva)
    y = (sigmoid(x Wg) * attention) Wo

`qk_rope_head_dim` widens queries and latent by a key that the heads share; it is never rotated.
Source: Kimi K3 report (arXiv 2607.24653), section 2.2.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from model.config import ModelConfig
from model.mixer import Mixer


class MLALayer(nn.Module):
    """Everything of a gated MLA layer but the attention over tokens."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.num_heads = config.num_attention_heads
        self.latent_rank = config.kv_lora_rank
        self.nope_dim = config.qk_nope_head_dim
        self.shared_dim = config.qk_rope_head_dim
        self.value_dim = config.v_head_dim
        self.scale = (self.nope_dim + self.shared_dim) ** -0.5
        hidden, eps = config.hidden_size, config.rms_norm_eps
        query_width = self.num_heads * (self.nope_dim + self.shared_dim)
        value_width = self.num_heads * self.value_dim
        self.q_a_proj = nn.Linear(hidden, config.q_lora_rank, bias=False)
        self.q_a_layernorm = nn.RMSNorm(config.q_lora_rank, eps=eps)
        self.q_b_proj = nn.Linear(config.q_lora_rank, query_width, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden, config.latent_width, bias=False)
        self.kv_a_layernorm = nn.RMSNorm(self.latent_rank, eps=eps)
        self.kv_b_proj = nn.Linear(
            self.latent_rank, self.num_heads * (self.nope_dim + self.value_dim), bias=False
        )
        self.g_proj = nn.Linear(hidden, value_width, bias=False)
        self.o_proj = nn.Linear(value_width, hidden, bias=False)

    def forward(self, x: Float[Tensor, "T D"], mixer: Mixer) -> Float[Tensor, "T D"]:
        """Apply the layer to the tokens of one forward."""
        per_head = self.kv_b_proj.weight.view(self.num_heads, -1, self.latent_rank)
        key_up, value_up = per_head.split([self.nope_dim, self.value_dim], dim=1)

        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q = q.view(-1, self.num_heads, self.nope_dim + self.shared_dim)
        absorbed = torch.einsum("thn,hnr->thr", q[..., : self.nope_dim], key_up)
        compressed = self.kv_a_proj_with_mqa(x)
        latent = self.kv_a_layernorm(compressed[:, : self.latent_rank])
        if self.shared_dim:
            absorbed = torch.cat([absorbed, q[..., self.nope_dim :]], dim=-1)
            latent = torch.cat([latent, compressed[:, self.latent_rank :]], dim=-1)

        mixed = mixer.latent_attention(self, absorbed, latent)[..., : self.latent_rank]
        output = torch.einsum("thr,hvr->thv", mixed, value_up).flatten(1)
        return self.o_proj(torch.sigmoid(self.g_proj(x)) * output)
