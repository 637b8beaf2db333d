"""Feed-forward layers: the dense one, and the stable latent mixture of experts.

    s = sigmoid(x Wr)                            router scores, float32
    chosen = the A highest of s + correction     the correction never enters the weights
    p_i = s_i / sum of the chosen s
    y = norm(sum_i p_i E_i(x Wdown)) Wup + shared(x)

The routed experts live in a latent narrower than the residual stream. The norm comes after the
weighted sum. Source: Kimi K3 report (arXiv 2607.24653), section 2.3.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from kernels.routed_experts import combine, dispatch, grouped_linear, plan_dispatch
from kernels.situ_glu import situ_glu
from model.config import ModelConfig


class FeedForward(nn.Module):
    """A dense SiTU-GLU layer; also the shared experts."""

    def __init__(self, config: ModelConfig, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.down_proj = nn.Linear(width, config.hidden_size, bias=False)
        self.betas = (config.activation_situ_beta, config.activation_situ_linear_beta)

    def forward(self, x: Float[Tensor, "T D"]) -> Float[Tensor, "T D"]:
        """Apply the layer."""
        return self.down_proj(situ_glu(self.gate_proj(x), self.up_proj(x), *self.betas))


class Expert(nn.Module):
    """Weights of one routed expert; `MoELayer` applies them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        latent, width = config.routed_expert_hidden_size, config.moe_intermediate_size
        self.w1 = nn.Linear(latent, width, bias=False)
        self.w2 = nn.Linear(width, latent, bias=False)
        self.w3 = nn.Linear(latent, width, bias=False)


class Router(nn.Module):
    """Chooses experts and weighs them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_chosen = config.num_experts_per_token
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))
        self.register_buffer("e_score_correction_bias", torch.zeros(config.num_experts))
        self.observer: Callable[[Tensor], None] | None = None
        """Is given the scores [T, E] of each forward, detached; see `model.balancing`."""

    @property
    def correction(self) -> Float[Tensor, " E"]:
        """Return what is added to the scores for the choice alone."""
        return self.get_buffer("e_score_correction_bias")

    def forward(
        self, x: Float[Tensor, "T D"], expert_ids: Int[Tensor, "T A"] | None = None
    ) -> tuple[Int[Tensor, "T A"], Float[Tensor, "T A"]]:
        """Return chosen experts and their weights.

        Args:
            x: Tokens at full width.
            expert_ids: A choice to replay; rows that hold -1 choose anew. The weights always come
                from the live scores, so that gradients reach the router.
        """
        scores = torch.sigmoid(linear(x.float(), self.weight.float()))
        if self.observer is not None:
            self.observer(scores.detach())
        if expert_ids is None or bool((expert_ids < 0).any()):
            chosen = (scores.detach() + self.correction).topk(self.num_chosen, dim=-1).indices
            if expert_ids is not None:
                missing = (expert_ids < 0).any(dim=-1, keepdim=True)
                chosen = torch.where(missing, chosen, expert_ids.long())
        else:
            chosen = expert_ids.long()
        weights = scores.gather(1, chosen)
        return chosen, (weights / weights.sum(dim=-1, keepdim=True)).to(x.dtype)


class MoELayer(nn.Module):
    """Routed experts in a latent space, plus shared experts at full width."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, latent = config.hidden_size, config.routed_expert_hidden_size
        self.gate = Router(config)
        self.routed_expert_down_proj = nn.Linear(hidden, latent, bias=False)
        self.experts = nn.ModuleList(Expert(config) for _ in range(config.num_experts))
        self.routed_expert_norm = nn.RMSNorm(latent, eps=config.rms_norm_eps)
        self.routed_expert_up_proj = nn.Linear(latent, hidden, bias=False)
        self.shared_experts = FeedForward(
            config, config.num_shared_experts * config.moe_intermediate_size
        )
        self.betas = (config.activation_situ_beta, config.activation_situ_linear_beta)

    def forward(
        self, x: Float[Tensor, "T D"], expert_ids: Int[Tensor, "T A"] | None = None
    ) -> tuple[Float[Tensor, "T D"], Int[Tensor, "T A"]]:
        """Apply the layer.

        Args:
            x: Tokens.
            expert_ids: A choice of experts to replay, -1 where there is none.

        Returns:
            Outputs, and the experts each token passed, in order of preference.
        """
        chosen, weights = self.gate(x, expert_ids)
        routed = self._route(self.routed_expert_down_proj(x), chosen, weights)
        routed = self.routed_expert_up_proj(self.routed_expert_norm(routed))
        return routed + self.shared_experts(x), chosen

    def _route(
        self,
        latent: Float[Tensor, "T X"],
        chosen: Int[Tensor, "T A"],
        weights: Float[Tensor, "T A"],
    ) -> Float[Tensor, "T X"]:
        """Sum the chosen experts' outputs."""
        plan = plan_dispatch(chosen, len(self.experts))
        rows = dispatch(latent, plan)
        gate = grouped_linear(rows, self._weights("w1"), plan)
        up = grouped_linear(rows, self._weights("w3"), plan)
        outputs = grouped_linear(situ_glu(gate, up, *self.betas), self._weights("w2"), plan)
        return combine(outputs, weights, plan)

    def _weights(self, name: str) -> list[Float[Tensor, "Y X"]]:
        """Return matrix `name` of each expert."""
        return [getattr(expert, name).weight for expert in self.experts]
