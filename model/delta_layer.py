"""Kimi Delta Attention: linear attention whose memory decays per channel and is corrected.

    q = unit(silu(conv(x Wq))),  k = unit(silu(conv(x Wk))),  v = silu(conv(x Wv))
    beta = sigmoid(x Wb)
    g = lower_bound sigmoid(exp(A_log) (x Wfa Wfb + dt_bias))
    y = (sigmoid(x Wg) * norm(delta_attention(q, k, v, g, beta))) Wo

Source: Kimi K3 report (arXiv 2607.24653), section 2.1.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear, silu

from kernels.gated_norm import gated_norm
from kernels.short_conv import short_conv
from model.config import ModelConfig
from model.mixer import Mixer

UNIT_EPS = 1e-6
"""Added to the square sum when q and k are scaled to unit length."""
DT_RANGE = (1e-3, 0.1)
"""Initial decay steps are drawn log-uniformly from it."""


class KDALayer(nn.Module):
    """Everything of a KDA layer but the mixing of tokens."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.num_heads = config.num_attention_heads
        self.head_dim = config.kda_head_dim
        self.conv_width = config.short_conv_kernel_size
        self.lower_bound = config.gate_lower_bound
        self.eps = config.rms_norm_eps
        width = self.num_heads * self.head_dim
        hidden = config.hidden_size
        self.q_proj = nn.Linear(hidden, width, bias=False)
        self.k_proj = nn.Linear(hidden, width, bias=False)
        self.v_proj = nn.Linear(hidden, width, bias=False)
        self.q_conv1d = nn.Conv1d(width, width, self.conv_width, groups=width, bias=False)
        self.k_conv1d = nn.Conv1d(width, width, self.conv_width, groups=width, bias=False)
        self.v_conv1d = nn.Conv1d(width, width, self.conv_width, groups=width, bias=False)
        self.f_a_proj = nn.Linear(hidden, self.head_dim, bias=False)
        self.f_b_proj = nn.Linear(self.head_dim, width, bias=False)
        self.b_proj = nn.Linear(hidden, self.num_heads, bias=False)
        self.g_proj = nn.Linear(hidden, width, bias=False)
        self.o_norm = nn.RMSNorm(self.head_dim, eps=self.eps)
        self.o_proj = nn.Linear(width, hidden, bias=False)
        self.A_log = nn.Parameter(torch.zeros(self.num_heads))
        self.dt_bias = nn.Parameter(torch.zeros(width))

    @torch.no_grad()
    def init_gates(self) -> None:
        """Draw the decay's initial values: dt log-uniform in DT_RANGE, `dt_bias` = softplus^-1."""
        low, high = (math.log(bound) for bound in DT_RANGE)
        dt = torch.empty_like(self.dt_bias).uniform_(low, high).exp()
        self.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))
        self.A_log.zero_()

    def activate(
        self,
        qkv: Float[Tensor, "T C"],
        cu_seqlens: Int[Tensor, " S1"],
        tails: Float[Tensor, "S N C"] | None = None,
    ) -> tuple[Float[Tensor, "T H K"], Float[Tensor, "T H K"], Float[Tensor, "T H V"]]:
        """Convolve and activate the projections; scale q and k to unit length per head.

        Args:
            qkv: Projections of the tokens of S packed sequences, as `forward` hands them to the
                mixer; C = 3HK.
            cu_seqlens: Start of each sequence, and T at the end.
            tails: The projections of the N = taps - 1 tokens before each sequence; zeros if None.
        """
        convs = (self.q_conv1d, self.k_conv1d, self.v_conv1d)
        weight = torch.cat([conv.weight.squeeze(1) for conv in convs])
        activated = silu(short_conv(qkv, weight, cu_seqlens, tails))
        heads = activated.view(len(qkv), 3, self.num_heads, self.head_dim)
        q, k, v = heads.unbind(dim=1)
        return _unit(q), _unit(k), v

    def gates(self, x: Float[Tensor, "T D"]) -> tuple[Float[Tensor, "T H K"], Float[Tensor, "T H"]]:
        """Return log-decays (nats, in [lower_bound, 0]) and write strengths (in [0, 1])."""
        logits = linear(self.f_a_proj(x), self.f_b_proj.weight, self.dt_bias)
        logits = logits.view(-1, self.num_heads, self.head_dim)
        g = self.lower_bound * torch.sigmoid(self.A_log.exp()[:, None] * logits)
        return g, torch.sigmoid(self.b_proj(x))

    def forward(self, x: Float[Tensor, "T D"], mixer: Mixer) -> Float[Tensor, "T D"]:
        """Apply the layer to the tokens of one forward."""
        projections = (self.q_proj, self.k_proj, self.v_proj)
        qkv = linear(x, torch.cat([projection.weight for projection in projections]))
        g, beta = self.gates(x)
        output = mixer.delta(self, qkv, g, beta)
        gate = self.g_proj(x).view_as(output)
        return self.o_proj(gated_norm(output, gate, self.o_norm.weight, self.eps).flatten(1))


def _unit(x: Tensor) -> Tensor:
    return x * (x.square().sum(dim=-1, keepdim=True) + UNIT_EPS).rsqrt()
