"""Each operation on the CPU against the plain way to compute it: forward and backward, float32.

The widths are those of the preset `tiny`. `measure_delta` also answers whether the cost per token
stays flat in the length of the sequence, which is what a long trajectory stands on.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import normalize, silu

from kernels.attention_residual import attention_residual
from kernels.benchmarks import plain
from kernels.benchmarks.timing import Function, announce, take_turns, there_and_back
from kernels.delta_attention import delta_attention
from kernels.delta_attention.reference import delta_recurrent, delta_step
from kernels.delta_attention.replay import ReplayState, delta_attention_replay
from kernels.delta_attention.segments import delta_chunked
from kernels.gated_norm import gated_norm
from kernels.routed_experts import combine, dispatch, grouped_linear, plan_dispatch
from kernels.short_conv import short_conv
from kernels.situ_glu import situ_glu
from kernels.token_logprobs import token_logprobs

NUM_TOKENS = 4096
LONG = 262_144
"""Tokens of the long sequence, 256k."""
SHORT_REPEATS = 16
"""Runs of the short sequence for one of the long."""
WIDTH = 128
NUM_HEADS = 4
HEAD_WIDTH = 32
VOCABULARY = 1024
NUM_EXPERTS = 8
NUM_CHOSEN = 2
LATENT_WIDTH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One operation and shape, computed in several ways."""

    op: str
    """Folder of the operation."""
    shape: str
    """Sizes by their letters."""
    seconds: Mapping[str, float]
    """Median of forward and backward, by the way it was computed; ours is called `ours`."""

    @property
    def speedups(self) -> dict[str, float]:
        """By how much ours is faster than each other way."""
        ours = self.seconds["ours"]
        return {name: value / ours for name, value in self.seconds.items() if name != "ours"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaCost:
    """What the delta rule costs."""

    comparison: Comparison
    """Ours is the chunked form, `recurrent` the specification, at `NUM_TOKENS`."""
    seconds_per_token: Mapping[int, float]
    """Forward and backward of one sequence, by its length."""

    @property
    def chunk_over_recurrent(self) -> float:
        """How many times faster chunks are than the recurrence."""
        return self.comparison.speedups["recurrent"]

    @property
    def long_over_short(self) -> float:
        """Cost per token of the longest sequence over that of the shortest."""
        per_token = self.seconds_per_token
        return per_token[max(per_token)] / per_token[min(per_token)]


def measure_delta(rounds: int) -> DeltaCost:
    """Time the delta rule: chunks against the recurrence, and a short sequence against long ones.

    Args:
        rounds: Runs timed of each, in turns.
    """
    announce(f"delta_attention: {NUM_TOKENS} tokens, chunks against the recurrence")
    inputs = _delta_inputs(NUM_TOKENS)
    ways = {
        "ours": there_and_back(_chunked, *inputs),
        "recurrent": there_and_back(_recurrent, *inputs),
    }
    if can_compile():
        # The whole recurrence would unroll into thousands of operations: its step is compiled.
        compiled = torch.compile(delta_step)
        ways["recurrent, compiled step"] = there_and_back(partial(_stepwise, compiled), *inputs)
    comparison = Comparison(
        op="delta_attention", shape=f"T = {NUM_TOKENS}", seconds=take_turns(ways, rounds)
    )
    announce(f"delta_attention: cost per token at {NUM_TOKENS} and {LONG} tokens")
    short, long = (there_and_back(_chunked, *_delta_inputs(n)) for n in (NUM_TOKENS, LONG))
    # A short run is repeated, so that a moment of quiet on the machine does not decide.
    seconds = take_turns({"short": _repeat(short, SHORT_REPEATS), "long": long}, rounds)
    return DeltaCost(
        comparison=comparison,
        seconds_per_token={
            NUM_TOKENS: seconds["short"] / (SHORT_REPEATS * NUM_TOKENS),
            LONG: seconds["long"] / LONG,
        },
    )


def is_replay_bitwise() -> bool:
    """Whether decoding by replay, token after token, gives the bits of the forward of training."""
    announce(f"delta_attention: {NUM_TOKENS} tokens decoded by replay")
    inputs = _delta_inputs(NUM_TOKENS)
    q, k, v, g, beta = inputs
    expected, _ = delta_attention(q, k, v, g, beta, torch.tensor([0, NUM_TOKENS]))
    state = ReplayState(torch.zeros(1, NUM_HEADS, HEAD_WIDTH, HEAD_WIDTH))
    one_token = torch.tensor([0, 1])
    decoded = [
        delta_attention_replay(q, k, v, g, beta, one_token, state)
        for q, k, v, g, beta in zip(*(x.split(1) for x in inputs), strict=True)
    ]
    return torch.equal(torch.cat(decoded), expected)


def measure_others(rounds: int) -> Iterator[Comparison]:
    """Time every other operation against the plain form, and against torch.compile of that.

    Args:
        rounds: Runs timed of each, in turns.
    """
    for op, rivals in _rivals().items():
        announce(f"{op}: {NUM_TOKENS} tokens")
        ways = {
            "ours": there_and_back(rivals.ours, *rivals.inputs),
            "plain": there_and_back(rivals.plain, *rivals.inputs),
        }
        if can_compile():
            ways["plain, compiled"] = there_and_back(torch.compile(rivals.plain), *rivals.inputs)
        yield Comparison(op=op, shape=f"T = {NUM_TOKENS}", seconds=take_turns(ways, rounds))


def can_compile() -> bool:
    """Whether torch.compile finds the C++ compiler that it needs on a CPU."""
    return shutil.which("g++") is not None or shutil.which("clang++") is not None


@dataclass(frozen=True, slots=True)
class _Rivals:
    """Two ways to compute an operation, and what both take."""

    ours: Function
    plain: Function
    inputs: Sequence[Tensor]


def _rivals() -> dict[str, _Rivals]:
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw)

    rows, heads = (NUM_TOKENS, WIDTH), (NUM_TOKENS, NUM_HEADS, HEAD_WIDTH)
    targets = torch.randint(VOCABULARY, (NUM_TOKENS,), generator=draw)
    bounds = torch.tensor([0, NUM_TOKENS])
    chosen = normal(NUM_TOKENS, NUM_EXPERTS).topk(NUM_CHOSEN, dim=1).indices
    return {
        "short_conv": _Rivals(
            partial(short_conv, cu_seqlens=bounds),
            plain.conv,
            (normal(NUM_TOKENS, 3 * WIDTH), normal(3 * WIDTH, 4)),
        ),
        "gated_norm": _Rivals(
            partial(gated_norm, eps=plain.EPS),
            plain.norm,
            (normal(*heads), normal(*heads), normal(HEAD_WIDTH)),
        ),
        "situ_glu": _Rivals(
            partial(situ_glu, beta=plain.BETA, linear_beta=plain.LINEAR_BETA),
            plain.situ,
            (normal(NUM_TOKENS, 3 * WIDTH), normal(NUM_TOKENS, 3 * WIDTH)),
        ),
        "attention_residual": _Rivals(
            lambda query, weight, *x: attention_residual(x, query, weight, plain.EPS),
            plain.residual,
            (normal(WIDTH), normal(WIDTH), *(normal(*rows) for _ in range(3))),
        ),
        "routed_experts": _Rivals(
            partial(_routed, chosen=chosen),
            partial(plain.experts, chosen=chosen),
            (
                normal(NUM_TOKENS, LATENT_WIDTH),
                normal(NUM_TOKENS, NUM_CHOSEN).sigmoid(),
                normal(NUM_EXPERTS, LATENT_WIDTH, LATENT_WIDTH),
            ),
        ),
        "token_logprobs": _Rivals(
            partial(token_logprobs, targets=targets),
            partial(plain.logprobs, targets=targets),
            (normal(*rows), normal(VOCABULARY, WIDTH)),
        ),
    }


def _routed(x: Tensor, weights: Tensor, matrices: Tensor, chosen: Tensor) -> Tensor:
    plan = plan_dispatch(chosen, len(matrices))
    rows = grouped_linear(dispatch(x, plan), matrices.unbind(), plan)
    return combine(rows, weights, plan)


def _chunked(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    return delta_chunked(q, k, v, g, beta, torch.tensor([0, len(q)]))[0]


def _recurrent(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    return delta_recurrent(q, k, v, g, beta, torch.tensor([0, len(q)]))[0]


def _delta_inputs(num_tokens: int) -> list[Tensor]:
    """Make q, k, v, g, beta of one sequence."""
    draw = torch.Generator().manual_seed(0)
    shape = (num_tokens, NUM_HEADS, HEAD_WIDTH)
    q, k = (normalize(silu(torch.randn(shape, generator=draw)), dim=-1) for _ in range(2))
    v = torch.randn(shape, generator=draw)
    g = -5.0 * torch.randn(shape, generator=draw).sigmoid()
    beta = torch.randn(shape[:2], generator=draw).sigmoid()
    return [q, k, v, g, beta]


def _stepwise(
    step: Callable[..., tuple[Tensor, Tensor]],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
) -> Tensor:
    """The recurrence with its step given."""
    state = v.new_zeros(1, *k.shape[1:], v.shape[-1])
    outputs = []
    for token in zip(*(x.unsqueeze(1).unbind() for x in (q, k, v, g, beta)), strict=True):
        output, state = step(*token, state)
        outputs.append(output)
    return torch.cat(outputs)


def _repeat(run: Callable[[], object], times: int) -> Callable[[], None]:
    def repeat() -> None:
        for _ in range(times):
            run()

    return repeat
