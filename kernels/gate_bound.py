"""How fast a memory may forget: the bound on the log-decay.

Every form of the delta rule needs it. It stands outside `delta_attention`, which imports torch, so
that a configuration can be checked without it.
"""

MIN_LOG_DECAY = -5.0
"""Lowest log-decay per token, nats."""


def check_gate_lower_bound(bound: float) -> None:
    """Refuse a lower bound of the gates for which the chunked delta rule leaves float32's range.

    It multiplies decays over 16 tokens, and divides by them: 16 tokens at -5 give exp(-80), while
    the smallest normal float32 is exp(-87.3).

    Raises:
        ValueError: the bound is outside [-5, 0).
    """
    if not MIN_LOG_DECAY <= bound < 0.0:
        raise ValueError(
            f"gate_lower_bound = {bound} is outside [-5, 0): the decay over 16 tokens would leave "
            "the range of exp in float32"
        )
