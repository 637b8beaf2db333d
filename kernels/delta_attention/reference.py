"""The delta rule as it is written, token by token: the specification."""

import itertools

import torch
from jaxtyping import Float, Int
from torch import Tensor


def delta_step(
    q: Float[Tensor, "B H K"],
    k: Float[Tensor, "B H K"],
    v: Float[Tensor, "B H V"],
    g: Float[Tensor, "B H K"],
    beta: Float[Tensor, "B H"],
    state: Float[Tensor, "B H K V"],
) -> tuple[Float[Tensor, "B H V"], Float[Tensor, "B H K V"]]:
    """One token of the recurrence for B sequences; see `kernels.delta_attention`."""
    decayed = state * g.exp().unsqueeze(-1)
    recalled = (k.unsqueeze(-2) @ decayed).squeeze(-2)
    correction = beta.unsqueeze(-1) * (v - recalled)
    state = decayed + k.unsqueeze(-1) * correction.unsqueeze(-2)
    scaled_q = q * q.shape[-1] ** -0.5
    return (scaled_q.unsqueeze(-2) @ state).squeeze(-2), state


def delta_recurrent(
    q: Float[Tensor, "T H K"],
    k: Float[Tensor, "T H K"],
    v: Float[Tensor, "T H V"],
    g: Float[Tensor, "T H K"],
    beta: Float[Tensor, "T H"],
    cu_seqlens: Int[Tensor, " S1"],
    initial_state: Float[Tensor, "S H K V"] | None = None,
) -> tuple[Float[Tensor, "T H V"], Float[Tensor, "S H K V"]]:
    """One token after another, for each packed sequence; see `kernels.delta_attention`."""
    outputs, states = [], []
    for row, (start, stop) in enumerate(itertools.pairwise(cu_seqlens.tolist())):
        if initial_state is None:
            state = v.new_zeros(1, *k.shape[1:], v.shape[-1])
        else:
            state = initial_state[row : row + 1]
        for t in range(start, stop):
            now = slice(t, t + 1)
            output, state = delta_step(q[now], k[now], v[now], g[now], beta[now], state)
            outputs.append(output)
        states.append(state)
    return torch.cat(outputs), torch.cat(states)
