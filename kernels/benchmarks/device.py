"""Each operation on a GPU: time, rate, share of the ceiling measured beside it, rivals' times.

    python -m kernels.benchmarks.device     a table on standard output, within `BUDGET_SECONDS`

Work is counted as the mathematics needs it: a product of [M, K] and [K, N] is 2 M K N operations,
a tensor read or written once is its bytes. What an implementation computes twice counts once.
Sizes are those of one layer of the preset `k3`, with fewer heads where a million tokens must fit.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn.functional import normalize

from kernels.attention_residual import attention_residual
from kernels.benchmarks import plain, rivals
from kernels.benchmarks.table import Ceilings, Row, Unit, format_table
from kernels.benchmarks.timing import Function, announce, there_and_back
from kernels.delta_attention import delta_attention
from kernels.gated_norm import gated_norm
from kernels.routed_experts import combine, dispatch, plan_dispatch
from kernels.short_conv import short_conv
from kernels.situ_glu import situ_glu
from kernels.token_logprobs import token_logprobs

BUDGET_SECONDS = 160.0
"""Rows that have not begun by then are listed as not run."""
SAMPLE_MS = 60
"""Milliseconds of repetitions behind each median."""
NO_DEVICE = 2
"""Exit code on a machine without a GPU."""

LENGTHS = (4_096, 65_536, 1_048_576)
NUM_HEADS = 8
HEAD_WIDTH = 128
CHUNK = 64
"""Tokens per chunk of the delta rule."""
HIDDEN = 2_048
VOCABULARY = 163_840
MAX_LOGIT_ROWS = 8_192
"""Most tokens for which rivals may hold all logits."""
NUM_EXPERTS = 64
NUM_CHOSEN = 4
NUM_CANDIDATES = 8
"""Candidates of one attention residual."""

DEVICE = "cuda"

Run = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One row before it is measured."""

    op: str
    shape: str
    work: float
    unit: Unit
    ours: Run
    rivals: Mapping[str, Run] = field(default_factory=dict)


def measure() -> Iterator[Row]:
    """Measure every operation at every length, ours and its rivals one after the other."""
    started = time.monotonic()
    makers = (
        delta_forward,
        delta_training,
        delta_decode,
        scores,
        conv,
        norm,
        situ,
        residual,
        experts,
    )
    sizes = ((1, 64, 1_024) if maker is delta_decode else LENGTHS for maker in makers)
    jobs = [(maker, size) for maker, each in zip(makers, sizes, strict=True) for size in each]
    for maker, size in jobs:
        if time.monotonic() - started > BUDGET_SECONDS:
            yield _missing(maker.__name__, size, "not run: the time was up")
            continue
        announce(f"{maker.__name__} {size}")
        try:
            yield _measure(maker(size))
        except torch.OutOfMemoryError:
            yield _missing(maker.__name__, size, "not run: more memory than the device has")
        torch.cuda.empty_cache()


def measure_ceilings() -> Ceilings:
    """Time a large matrix product and a large copy."""
    size, gibibyte = 8_192, 1 << 30
    left, right = (_normal(size, size) for _ in range(2))
    source = torch.empty(gibibyte, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    return Ceilings(
        matmul=2.0 * size**3 / _seconds(lambda: left @ right),
        copy=2.0 * gibibyte / _seconds(lambda: target.copy_(source)),
    )


def delta_flops(num_tokens: int) -> float:
    """Count the operations of the chunked delta rule's forward pass, per `kernels.delta_attention`.

    With C tokens per chunk and one head, per token: two score matrices 4 C K, the solved keys and
    values 2 C (K + V), the read and the mixture 2 K V + 2 C V, the state's use and update 4 K V.
    """
    per_head = CHUNK * (4 + 4 + 2) * HEAD_WIDTH + 6 * HEAD_WIDTH**2
    return float(num_tokens * NUM_HEADS * per_head)


def delta_forward(num_tokens: int) -> Workload:
    """The chunked delta rule, forward."""
    inputs, bounds = _delta_inputs(num_tokens)

    def theirs(run: rivals.Run) -> Run:
        return _forward(partial(rivals.chunk_kda, run, cu_seqlens=bounds), inputs)

    return Workload(
        op="delta_attention, forward",
        shape=f"T {num_tokens}, H {NUM_HEADS}, K = V = {HEAD_WIDTH}",
        work=delta_flops(num_tokens),
        unit=Unit.FLOPS,
        ours=_forward(partial(_outputs, cu_seqlens=bounds), inputs),
        rivals=_rival(rivals.CHUNK_KDA, theirs),
    )


def delta_training(num_tokens: int) -> Workload:
    """The chunked delta rule, forward and backward: each product has two in its gradient."""
    inputs, bounds = _delta_inputs(num_tokens)

    def theirs(run: rivals.Run) -> Run:
        return there_and_back(partial(rivals.chunk_kda, run, cu_seqlens=bounds), *inputs)

    return Workload(
        op="delta_attention",
        shape=f"T {num_tokens}, H {NUM_HEADS}, K = V = {HEAD_WIDTH}",
        work=3 * delta_flops(num_tokens),
        unit=Unit.FLOPS,
        ours=there_and_back(partial(_outputs, cu_seqlens=bounds), *inputs),
        rivals=_rival(rivals.CHUNK_KDA, theirs),
    )


def delta_decode(batch: int) -> Workload:
    """One token of each of many sequences: every state is read and written."""
    from kernels.delta_attention.decode import delta_step_triton

    (q, k, v, g, beta), _ = _delta_inputs(batch)
    states = _normal(batch, NUM_HEADS, HEAD_WIDTH, HEAD_WIDTH).float()
    slots = torch.arange(batch, device=DEVICE)

    def theirs(run: rivals.Run) -> Run:
        return lambda: rivals.recurrent_kda(run, q, k, v, g, beta, states)

    return Workload(
        op="delta_attention, decode",
        shape=f"B {batch}, H {NUM_HEADS}, K = V = {HEAD_WIDTH}",
        work=2.0 * states.numel() * states.element_size(),
        unit=Unit.BYTES,
        ours=lambda: delta_step_triton(q, k, v, g, beta, states, slots),
        rivals=_rival(rivals.RECURRENT_KDA, theirs),
    )


def scores(num_tokens: int) -> Workload:
    """Log-probabilities and entropies: the head's product forward, two more in its gradient."""
    hidden, head = _normal(num_tokens, HIDDEN), _normal(VOCABULARY, HIDDEN)
    targets = torch.randint(VOCABULARY, (num_tokens,), device=DEVICE)

    def both_ways(function: Function) -> Run:
        return there_and_back(partial(function, targets=targets), hidden, head)

    theirs = _rival(rivals.LIGER_LOSS, lambda run: both_ways(partial(rivals.liger_loss, run)))
    if num_tokens <= MAX_LOGIT_ROWS:
        theirs |= _rival(
            rivals.TRL_LOGPROBS, lambda run: both_ways(partial(rivals.trl_logprobs, run))
        )
        theirs["compiled"] = both_ways(_compiled(plain.logprobs))
    return Workload(
        op="token_logprobs",
        shape=f"T {num_tokens}, D {HIDDEN}, W {VOCABULARY}",
        work=6.0 * num_tokens * HIDDEN * VOCABULARY,
        unit=Unit.FLOPS,
        ours=both_ways(token_logprobs),
        rivals=theirs,
    )


def conv(num_tokens: int) -> Workload:
    """Short convolution: x in, y out; x and dy in, dx out."""
    x, weight = _normal(num_tokens, HIDDEN), _normal(HIDDEN, 4)
    bounds = torch.tensor([0, num_tokens], device=DEVICE)
    ours = there_and_back(partial(short_conv, cu_seqlens=bounds), x, weight)
    return _streaming("short_conv", x, 5, ours, there_and_back(_compiled(plain.conv), x, weight))


def norm(num_tokens: int) -> Workload:
    """Gated norm: x and gate in, y out; x, gate and dy in, dx and dgate out."""
    heads = (num_tokens, HIDDEN // HEAD_WIDTH, HEAD_WIDTH)
    x, gate, weight = _normal(*heads), _normal(*heads), _normal(HEAD_WIDTH)
    ours = there_and_back(partial(gated_norm, eps=plain.EPS), x, gate, weight)
    theirs = there_and_back(_compiled(plain.norm), x, gate, weight)
    return _streaming("gated_norm", x, 8, ours, theirs)


def situ(num_tokens: int) -> Workload:
    """SiTU-GLU: gate and up in, y out; gate, up and dy in, dgate and dup out."""
    gate, up = _normal(num_tokens, HIDDEN), _normal(num_tokens, HIDDEN)
    bounded = partial(situ_glu, beta=plain.BETA, linear_beta=plain.LINEAR_BETA)
    ours = there_and_back(bounded, gate, up)
    return _streaming("situ_glu", gate, 8, ours, there_and_back(_compiled(plain.situ), gate, up))


def residual(num_tokens: int) -> Workload:
    """Attention residual over N candidates: N in, y out; N and dy in, N gradients out."""
    inputs = [_normal(HIDDEN), _normal(HIDDEN)]
    inputs += [_normal(num_tokens, HIDDEN) for _ in range(NUM_CANDIDATES)]

    def mix(query: Tensor, weight: Tensor, *candidates: Tensor) -> Tensor:
        return attention_residual(candidates, query, weight, plain.EPS)

    ours, theirs = (there_and_back(f, *inputs) for f in (mix, _compiled(plain.residual)))
    passes = 3 * NUM_CANDIDATES + 2
    return _streaming("attention_residual", inputs[-1], passes, ours, theirs)


def experts(num_tokens: int) -> Workload:
    """Rows to A experts and back: 2 + 2A forward, 2 + 3A in the gradients."""
    x, weights = _normal(num_tokens, HIDDEN), _normal(num_tokens, NUM_CHOSEN).sigmoid()
    chosen = _normal(num_tokens, NUM_EXPERTS).topk(NUM_CHOSEN, dim=1).indices
    plan = plan_dispatch(chosen, NUM_EXPERTS)

    def travel(x: Tensor, weights: Tensor) -> Tensor:
        return combine(dispatch(x, plan), weights, plan)

    places = {"choice_of_row": plan.choice_of_row, "row_of_choice": plan.row_of_choice}
    theirs = there_and_back(partial(_compiled(plain.round_trip), **places), x, weights)
    ours = there_and_back(travel, x, weights)
    return _streaming("routed_experts", x, 4 + 5 * NUM_CHOSEN, ours, theirs)


def _streaming(op: str, x: Tensor, passes: int, ours: Run, compiled: Run) -> Workload:
    """An operation bound by memory: `passes` tensors of the size of `x` read or written."""
    return Workload(
        op=op,
        shape=f"T {len(x)}, D {x[0].numel()}",
        work=float(passes * x.numel() * x.element_size()),
        unit=Unit.BYTES,
        ours=ours,
        rivals={"compiled": compiled},
    )


def _measure(workload: Workload) -> Row:
    seconds = _seconds(workload.ours)
    theirs: dict[str, float] = {}
    remarks: list[str] = []
    for name, run in workload.rivals.items():
        try:
            theirs[name] = _seconds(run)
        except Exception as error:  # a rival's failure is a remark, whatever it raises
            remarks.append(f"{name} failed: {type(error).__name__}")
    return Row(
        op=workload.op,
        shape=workload.shape,
        work=workload.work,
        unit=workload.unit,
        seconds=seconds,
        rivals=theirs,
        remark="; ".join(remarks),
    )


def _missing(op: str, size: int, remark: str) -> Row:
    nan = float("nan")
    return Row(op=op, shape=str(size), work=0, unit=Unit.FLOPS, seconds=nan, remark=remark)


def _seconds(run: Run) -> float:
    """Median time of a call on the device, its caches emptied in between."""
    from triton.testing import do_bench

    milliseconds = do_bench(run, warmup=SAMPLE_MS // 3, rep=SAMPLE_MS, return_mode="median")
    assert isinstance(milliseconds, float)
    return milliseconds * 1e-3


def _rival(rival: rivals.Rival, prepare: Callable[[rivals.Run], Run]) -> dict[str, Run]:
    """Return the rival under its name, or nothing where it is not installed."""
    run = rivals.load(rival)
    return {} if isinstance(run, str) else {rival.name: prepare(run)}


def _outputs(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, cu_seqlens: Tensor
) -> Tensor:
    """The delta rule without its final states: training has no use for their gradient."""
    return delta_attention(q, k, v, g, beta, cu_seqlens)[0]


def _forward(function: rivals.Run, inputs: Sequence[Tensor]) -> Run:
    def run() -> object:
        with torch.no_grad():
            return function(*inputs)

    return run


@cache
def _compiled(function: Function) -> Function:
    """Compile once for all lengths."""
    return torch.compile(function, dynamic=True)


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)


def _delta_inputs(num_tokens: int) -> tuple[list[Tensor], Tensor]:
    """Make q, k, v, g, beta of one sequence, and its bounds."""
    heads = (num_tokens, NUM_HEADS, HEAD_WIDTH)
    q, k = (normalize(_normal(*heads), dim=-1) for _ in range(2))
    g = -5.0 * _normal(*heads).sigmoid()
    beta = _normal(*heads[:2]).sigmoid()
    return [q, k, _normal(*heads), g, beta], torch.tensor([0, num_tokens], device=DEVICE)


def main() -> int:
    """Write the table, and which rivals are left out."""
    if not torch.cuda.is_available():
        sys.stderr.write("no CUDA device\n")
        return NO_DEVICE
    torch.manual_seed(0)
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}"
    sys.stdout.write(f"{torch.cuda.get_device_name()}, {versions}\n")
    for line in rivals.absences():
        sys.stdout.write(line + "\n")
    ceilings = measure_ceilings()
    sys.stdout.write(format_table(list(measure()), ceilings) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
