"""The chunked delta rule on a GPU, as a function that autograd knows.

Takes the packed tensors of `kernels.delta_attention`, lays the chunk grid over them and runs the
kernels of `forward` and `backward` in order.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor
from triton import knobs

from kernels.delta_attention import backward, forward
from kernels.delta_attention.chunk_grid import ChunkGrid
from kernels.delta_attention.tiles import CHUNK_TOKENS, TILE_TOKENS, TILES_PER_CHUNK, Shape


@dataclass(frozen=True, slots=True)
class Scores:
    """What the tokens of a chunk are to each other, one line of C = 64 columns per token."""

    mixing: Float[Tensor, "T H C"]
    """A: what a token reads of what each token of the chunk writes."""
    coupling: Float[Tensor, "T H C"]
    """M: how much of each earlier token's key is in a token's key."""
    inverse: Float[Tensor, "T H C"]
    """X, the inverse of I + diag(beta) M."""


@dataclass(frozen=True, slots=True)
class Passage:
    """What the pass over the states needs and leaves."""

    cumulative: Float[Tensor, "T H K"]
    """G, bits."""
    erase: Float[Tensor, "T H K"]
    """W: what a state is multiplied by to be subtracted from U."""
    reader: Float[Tensor, "T H K"]
    """q~: queries that read the state before the chunk."""
    writer: Float[Tensor, "T H K"]
    """k~: keys that write the state after the chunk."""
    corrections: Float[Tensor, "T H V"]
    """V~: what each token writes."""
    states: Float[Tensor, "N H K V"]
    """State before each chunk."""
    final_state: Float[Tensor, "S H K V"]
    """State after each sequence, float32."""


@dataclass(frozen=True, slots=True)
class Call:
    """The tensors of one call, contiguous, and what is common to its launches."""

    q: Float[Tensor, "T H K"]
    k: Float[Tensor, "T H K"]
    v: Float[Tensor, "T H V"]
    g: Float[Tensor, "T H K"]
    beta: Float[Tensor, "T H"]
    initial_state: Float[Tensor, "S H K V"]
    grid: ChunkGrid

    @property
    def shape(self) -> Shape:
        """Sizes, and the type of the factors of matrix products."""
        # The interpreter multiplies bfloat16 wrongly. A float16 cannot hold a decay of 37 nats.
        is_exact = self.work_type == torch.float32 or knobs.runtime.interpret
        return Shape(
            H=self.q.shape[1],
            K=self.q.shape[2],
            V=self.v.shape[2],
            DOT=tl.float32 if is_exact else tl.bfloat16,
        )

    @property
    def work_type(self) -> torch.dtype:
        """Type of what kernels hand to each other for matrix products."""
        return torch.float32 if self.q.dtype == torch.float32 else torch.bfloat16

    @property
    def per_chunk(self) -> tuple[int, int]:
        """Grid of one program per chunk and head."""
        return len(self.grid), self.q.shape[1]

    @property
    def per_tile(self) -> tuple[int, int]:
        """Grid of one program per tile of 16 tokens and head."""
        return len(self.grid) * TILES_PER_CHUNK, self.q.shape[1]

    @property
    def per_sequence(self) -> tuple[int, int]:
        """Grid of one program per sequence and head."""
        return len(self.initial_state), self.q.shape[1]

    def work(self, *shape: int) -> Tensor:
        """Allocate a tensor in the type of `work_type`."""
        return torch.empty(shape, dtype=self.work_type, device=self.q.device)

    def exact(self, *shape: int) -> Tensor:
        """Allocate a float32 tensor."""
        return torch.empty(shape, dtype=torch.float32, device=self.q.device)


def make_call(
    q: Float[Tensor, "T H K"],
    k: Float[Tensor, "T H K"],
    v: Float[Tensor, "T H V"],
    g: Float[Tensor, "T H K"],
    beta: Float[Tensor, "T H"],
    cu_seqlens: Int[Tensor, " S1"],
    initial_state: Float[Tensor, "S H K V"] | None,
    starts: Int[Tensor, " S"] | None,
) -> Call:
    """Bring the arguments into the form that the kernels read.

    Raises:
        ValueError: the inputs are of a type that no kernel computes in.
    """
    if q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"delta_attention: no Triton kernel for {q.dtype}: convert to float32")
    if initial_state is None:
        shape = (len(cu_seqlens) - 1, q.shape[1], q.shape[2], v.shape[2])
        initial_state = torch.zeros(shape, dtype=torch.float32, device=q.device)
    return Call(
        q.contiguous(),
        k.contiguous(),
        v.contiguous(),
        g.contiguous(),
        beta.contiguous(),
        initial_state.float().contiguous(),
        ChunkGrid.of(cu_seqlens, starts, q.device),
    )


def run_gates(call: Call) -> Float[Tensor, "T H K"]:
    """Return the cumulative gates, bits."""
    cumulative = call.exact(*call.g.shape)
    forward.CUMULATE_GATES.launch(call.per_chunk, call.shape, call.g, cumulative, call.grid.table)
    return cumulative


def run_scores(call: Call, cumulative: Float[Tensor, "T H K"]) -> Scores:
    """Score the tokens of each chunk against each other, and solve for what they write."""
    tokens, heads, _ = call.q.shape
    scores = Scores(
        mixing=call.work(tokens, heads, CHUNK_TOKENS),
        coupling=call.exact(tokens, heads, CHUNK_TOKENS),
        inverse=call.work(tokens, heads, CHUNK_TOKENS),
    )
    table = call.grid.table
    forward.SCORE_TILES.launch(
        call.per_tile,
        call.shape,
        call.q,
        call.k,
        cumulative,
        scores.mixing,
        scores.coupling,
        table,
    )
    tiles = call.exact(tokens, heads, TILE_TOKENS)
    forward.INVERT_TILES.launch(
        call.per_chunk, call.shape, scores.coupling, call.beta, tiles, table
    )
    forward.MERGE_TILES.launch(
        call.per_chunk, call.shape, scores.coupling, call.beta, tiles, scores.inverse, table
    )
    return scores


def run_passage(call: Call, cumulative: Float[Tensor, "T H K"], scores: Scores) -> Passage:
    """Carry each sequence's state over its chunks."""
    tokens, heads, key_width = call.q.shape
    value_width = call.v.shape[2]
    passage = Passage(
        cumulative=cumulative,
        erase=call.work(tokens, heads, key_width),
        reader=call.work(tokens, heads, key_width),
        writer=call.work(tokens, heads, key_width),
        corrections=call.work(tokens, heads, value_width),
        states=call.work(len(call.grid), heads, key_width, value_width),
        final_state=call.exact(*call.initial_state.shape),
    )
    write = call.work(tokens, heads, value_width)
    forward.PREPARE_CHUNKS.launch(
        call.per_chunk,
        call.shape,
        call.q,
        call.k,
        call.v,
        call.beta,
        cumulative,
        scores.inverse,
        passage.erase,
        write,
        passage.reader,
        passage.writer,
        call.grid.table,
    )
    forward.CARRY_STATES.launch(
        call.per_sequence,
        call.shape,
        passage.erase,
        write,
        passage.writer,
        cumulative,
        call.initial_state,
        passage.states,
        passage.corrections,
        passage.final_state,
        call.grid.table,
        call.grid.first_chunks,
    )
    return passage


def run_outputs(call: Call, scores: Scores, passage: Passage) -> Float[Tensor, "T H V"]:
    """Return the outputs, in the type of v."""
    out = torch.empty_like(call.v)
    forward.MIX_OUTPUTS.launch(
        call.per_chunk,
        call.shape,
        passage.reader,
        scores.mixing,
        passage.states,
        passage.corrections,
        out,
        call.grid.table,
    )
    return out


def run_gradients(
    call: Call,
    scores: Scores,
    passage: Passage,
    out_grad: Float[Tensor, "T H V"],
    final_grad: Float[Tensor, "S H K V"],
) -> tuple[Tensor, ...]:
    """Return the gradients of q, k, v, g, beta and the initial state."""
    tokens, heads, key_width = call.q.shape
    shape, table = call.shape, call.grid.table
    correction_grads = call.exact(*call.v.shape)
    after_grads = torch.empty_like(passage.states)
    initial_grad = call.exact(*call.initial_state.shape)
    backward.PULL_CORRECTIONS.launch(
        call.per_chunk, shape, scores.mixing, out_grad, correction_grads, table
    )
    backward.CARRY_STATE_GRADS.launch(
        call.per_sequence,
        shape,
        passage.erase,
        passage.reader,
        passage.writer,
        passage.cumulative,
        out_grad,
        final_grad,
        correction_grads,
        after_grads,
        initial_grad,
        table,
        call.grid.first_chunks,
    )
    solved = call.work(*call.v.shape)
    mixing_grad = torch.empty_like(scores.mixing)
    coupling_grad = torch.empty_like(scores.mixing)
    beta_part = call.exact(tokens, heads)
    q_grad, k_grad, v_grad, g_grad, beta_grad = (
        torch.empty_like(x) for x in (call.q, call.k, call.v, call.g, call.beta)
    )
    backward.SOLVE_GRADS.launch(
        call.per_chunk,
        shape,
        call.v,
        call.beta,
        scores.coupling,
        scores.inverse,
        passage.corrections,
        correction_grads,
        out_grad,
        solved,
        v_grad,
        beta_part,
        mixing_grad,
        coupling_grad,
        table,
    )
    q_part, k_part, gate_part = (call.exact(tokens, heads, key_width) for _ in range(3))
    backward.STATE_GRADS.launch(
        call.per_chunk,
        shape,
        call.q,
        call.k,
        call.beta,
        passage.cumulative,
        passage.states,
        after_grads,
        passage.corrections,
        solved,
        out_grad,
        beta_part,
        q_part,
        k_part,
        gate_part,
        beta_grad,
        table,
    )
    backward.SCORE_GRADS.launch(
        call.per_tile,
        shape,
        call.q,
        call.k,
        passage.cumulative,
        mixing_grad,
        coupling_grad,
        q_part,
        k_part,
        gate_part,
        q_grad,
        k_grad,
        table,
    )
    backward.SUM_GATE_GRADS.launch(call.per_chunk, shape, gate_part, g_grad, table)
    return q_grad, k_grad, v_grad, g_grad, beta_grad, initial_grad


class TritonDeltaAttention(torch.autograd.Function):
    """`kernels.delta_attention.delta_attention` as Triton kernels, with its gradients.

    Kept for the backward pass are the inputs and the scores, 64 numbers per token and head; what
    passes through the states is computed again.
    """

    @staticmethod
    def forward(  # noqa: PLR0917  apply passes by position
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        q: Float[Tensor, "T H K"],
        k: Float[Tensor, "T H K"],
        v: Float[Tensor, "T H V"],
        g: Float[Tensor, "T H K"],
        beta: Float[Tensor, "T H"],
        cu_seqlens: Int[Tensor, " S1"],
        initial_state: Float[Tensor, "S H K V"] | None = None,
        starts: Int[Tensor, " S"] | None = None,
    ) -> tuple[Float[Tensor, "T H V"], Float[Tensor, "S H K V"]]:
        """Return the outputs, and the final states in float32."""
        call = make_call(q, k, v, g, beta, cu_seqlens, initial_state, starts)
        cumulative = run_gates(call)
        scores = run_scores(call, cumulative)
        passage = run_passage(call, cumulative, scores)
        ctx.grid, ctx.has_state = call.grid, initial_state is not None
        ctx.save_for_backward(
            *(call.q, call.k, call.v, call.g, call.beta, call.initial_state),
            *(scores.mixing, scores.coupling, scores.inverse),
        )
        return run_outputs(call, scores, passage), passage.final_state

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  torch has no public type for it
        *grads: Tensor,
    ) -> tuple[Tensor | None, ...]:
        """Compute the passage again, then every gradient."""
        *inputs, mixing, coupling, inverse = ctx.saved_tensors
        q, k, v, g, beta, initial_state = inputs
        call = Call(q, k, v, g, beta, initial_state, ctx.grid)
        scores = Scores(mixing, coupling, inverse)
        passage = run_passage(call, run_gates(call), scores)
        *input_grads, state_grad = run_gradients(
            call, scores, passage, grads[0].contiguous(), grads[1].contiguous()
        )
        return *input_grads, None, state_grad if ctx.has_state else None, None
