"""Gated multi-head latent attention without positions.

    q = norm(x Wqa) Wqb                          [T, H, N + P]
    c = norm(x Wkva)                             [T, R], the latent; P more columns: a shared key s
    y = (sigmoid(x Wg) * attention) Wo

With Wuk and Wuv the per-head halves of `kv_b_proj`, head h attends in one of two forms, equal
because no rotation stands between query and key:

    expanded   k = [c Wuk,h | s],  v = c Wuv,h       softmax(q k^T scale) v
    absorbed   q' = [q Wuk,h^T | q_s],  k' = [c | s]  (softmax(q' k'^T scale) c) Wuv,h

The expanded form makes keys and values per head, which costs memory and pays in narrower products;
the absorbed form attends over what is cached, one latent per token for all heads. Both spend
2 R (N + V) multiplications per token and head around the attention, so the mixer chooses by the
width of the attention alone.

N is `qk_nope_head_dim`, P `qk_rope_head_dim` (a key that the heads share; never rotated), R
`kv_lora_rank`, V `v_head_dim`. Source: Kimi K3 report (arXiv 2607.24653), section 2.2.
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

    @property
    def attends_cheaper_expanded(self) -> bool:
        """Whether whole sequences cost less with keys and values per head.

        A fused attention has one width for keys and values. Per head and pair of tokens it takes
        4 max(N + P, V) operations expanded and 4 (R + P) absorbed.
        """
        expanded = max(self.nope_dim + self.shared_dim, self.value_dim)
        return expanded < self.latent_rank + self.shared_dim

    def expand(
        self, latent: Float[Tensor, "T R+P"]
    ) -> tuple[Float[Tensor, "T H N+P"], Float[Tensor, "T H V"]]:
        """Make keys and values per head from latents."""
        c, shared = latent.split([self.latent_rank, self.shared_dim], dim=-1)
        per_head = self.kv_b_proj(c).view(len(c), self.num_heads, -1)
        k, v = per_head.split([self.nope_dim, self.value_dim], dim=-1)
        if self.shared_dim:
            k = torch.cat([k, shared.unsqueeze(1).expand(-1, self.num_heads, -1)], dim=-1)
        return k, v

    def absorb(self, q: Float[Tensor, "T H N+P"]) -> Float[Tensor, "T H R+P"]:
        """Turn queries of expanded keys into queries of latents."""
        key_up, _ = self._up_projections()
        absorbed = torch.einsum("thn,hnr->thr", q[..., : self.nope_dim], key_up)
        return torch.cat([absorbed, q[..., self.nope_dim :]], -1) if self.shared_dim else absorbed

    def read_values(self, mixed: Float[Tensor, "T H R+P"]) -> Float[Tensor, "T H V"]:
        """Turn attention-weighted sums of latents into those of values; the shared key drops out.

        Undoes on the outputs what `absorb` did to the queries.
        """
        _, value_up = self._up_projections()
        return torch.einsum("thr,hvr->thv", mixed[..., : self.latent_rank], value_up)

    def forward(self, x: Float[Tensor, "T D"], mixer: Mixer) -> Float[Tensor, "T D"]:
        """Apply the layer to the tokens of one forward."""
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q = q.view(len(x), self.num_heads, self.nope_dim + self.shared_dim)
        compressed = self.kv_a_proj_with_mqa(x)
        latent = self.kv_a_layernorm(compressed[:, : self.latent_rank])
        if self.shared_dim:
            latent = torch.cat([latent, compressed[:, self.latent_rank :]], dim=-1)
        attended = mixer.latent_attention(self, q, latent).flatten(1)
        return self.o_proj(torch.sigmoid(self.g_proj(x)) * attended)

    def _up_projections(self) -> tuple[Float[Tensor, "H N R"], Float[Tensor, "H V R"]]:
        """Split `kv_b_proj` into what makes keys and what makes values."""
        per_head = self.kv_b_proj.weight.view(self.num_heads, -1, self.latent_rank)
        key_up, value_up = per_head.split([self.nope_dim, self.value_dim], dim=1)
        return key_up, value_up
