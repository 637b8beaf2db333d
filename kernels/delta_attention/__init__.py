"""Gated delta rule with a decay per channel: the sequence mixing of a KDA layer.

Per head, with state S [K, V] (S_0 = `initial_state`, or 0), for t = 1 .. T:

    S'_t = diag(exp(g_t)) S_{t-1}                  forget, channel by channel
    u_t  = beta_t (v_t - S'_t^T k_t)               what the memory gets wrong about k_t
    S_t  = S'_t + k_t u_t^T                        correct it
    o_t  = K^(-1/2) S_t^T q_t                      read, the current token included

A token with g = 0 and beta = 0 leaves the state unchanged: that is how padding is written.

Source: Kimi Linear (arXiv 2510.26692) and the Kimi K3 report (arXiv 2607.24653), section 2.1.
"""

from jaxtyping import Float
from torch import Tensor

from kernels.delta_attention.reference import delta_chunked, delta_step

MIN_LOG_DECAY = -5.0
"""Lowest log-decay per token for which the chunked form stays inside float32's range."""


def delta_attention(
    q: Float[Tensor, "S T H K"],
    k: Float[Tensor, "S T H K"],
    v: Float[Tensor, "S T H V"],
    g: Float[Tensor, "S T H K"],
    beta: Float[Tensor, "S T H"],
    initial_state: Float[Tensor, "S H K V"] | None = None,
) -> tuple[Float[Tensor, "S T H V"], Float[Tensor, "S H K V"]]:
    """Run the recurrence over a padded batch of sequences, differentiably.

    Args:
        q: Queries, normalised to unit length; the factor K^(-1/2) is applied here.
        k: Keys, normalised to unit length.
        v: Values.
        g: Log-decay in [MIN_LOG_DECAY, 0], nats per token; 0 on padding.
        beta: Write strength in [0, 1]; 0 on padding.
        initial_state: State before the first token; zeros if None.

    Returns:
        Outputs, and the state after each sequence's last token.
    """
    return delta_chunked(q, k, v, g, beta, initial_state)


def delta_attention_step(
    q: Float[Tensor, "B H K"],
    k: Float[Tensor, "B H K"],
    v: Float[Tensor, "B H V"],
    g: Float[Tensor, "B H K"],
    beta: Float[Tensor, "B H"],
    state: Float[Tensor, "B H K V"],
) -> tuple[Float[Tensor, "B H V"], Float[Tensor, "B H K V"]]:
    """Advance B independent sequences by one token each.

    Args:
        q: Queries, normalised to unit length; the factor K^(-1/2) is applied here.
        k: Keys, normalised to unit length.
        v: Values.
        g: Log-decay in [MIN_LOG_DECAY, 0], nats.
        beta: Write strength in [0, 1].
        state: State before the token; not changed.

    Returns:
        Outputs, and the new states.
    """
    return delta_step(q, k, v, g, beta, state)
