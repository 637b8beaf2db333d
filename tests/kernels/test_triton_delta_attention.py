"""The Triton kernels of delta attention are the recurrence: forward, backward, token by token."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from kernels.delta_attention import MIN_LOG_DECAY

HEADS = 2
CLOSE = {"rtol": 2e-5, "atol": 2e-5}
"""Of float32 kernels against a float64 recurrence; outputs and gradients are of order 1 to 10."""


def recurrence(q, k, v, g, beta, lengths, state):
    """The four lines of `kernels.delta_attention`, one sequence and one token after another."""
    outputs, finals = [], []
    for row, (begin, end) in enumerate(itertools.pairwise(itertools.accumulate([0, *lengths]))):
        memory = state[row]
        for t in range(begin, end):
            memory = memory * g[t].exp()[:, :, None]
            wrong = v[t] - torch.einsum("hkv,hk->hv", memory, k[t])
            memory = memory + torch.einsum("hk,hv->hkv", k[t], beta[t, :, None] * wrong)
            outputs.append(torch.einsum("hkv,hk->hv", memory, q[t]) / q.shape[-1] ** 0.5)
        finals.append(memory)
    return torch.stack(outputs), torch.stack(finals)


def make_inputs(lengths, key_width=24, value_width=16, decay=None) -> list[Tensor]:
    """q, k, v, g, beta and the initial states, float64."""
    generator = torch.Generator().manual_seed(sum(lengths))
    tokens = sum(lengths)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    q = normalize(draw(tokens, HEADS, key_width), dim=-1)
    k = normalize(draw(tokens, HEADS, key_width), dim=-1)
    g = MIN_LOG_DECAY * draw(tokens, HEADS, key_width).sigmoid()
    if decay is not None:
        g = torch.full_like(g, decay)
    state = draw(len(lengths), HEADS, key_width, value_width)
    return [q, k, draw(tokens, HEADS, value_width), g, draw(tokens, HEADS).sigmoid(), state]


def run(inputs, lengths, starts=None, dtype=torch.float32, device="cpu"):
    """The kernels' outputs and final states."""
    from kernels.delta_attention.launch import TritonDeltaAttention

    bounds = torch.tensor([0, *itertools.accumulate(lengths)])
    *rest, state = (x.to(device) for x in inputs)
    rest = [x.to(dtype) for x in rest]
    starts = None if starts is None else torch.tensor(starts)
    return TritonDeltaAttention.apply(
        *rest, bounds, None if state is None else state.float(), starts
    )


PACKS = {
    "1": ([1], None),
    "15": ([15], None),
    "16": ([16], None),
    "17": ([17], None),
    "63": ([63], None),
    "64": ([64], None),
    "65": ([65], None),
    "packed": ([5, 70, 1], None),
    "packed, starting inside chunks": ([17, 50, 3], [5, 60, 62]),
}


@pytest.mark.parametrize("pack", PACKS)
def test_outputs_and_states_are_those_of_the_recurrence(pack, device):
    lengths, starts = PACKS[pack]
    inputs = make_inputs(lengths)
    expected = recurrence(*inputs[:5], lengths, inputs[5])
    actual = run(inputs, lengths, starts, device=device)
    for ours, exact in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours.cpu().double(), exact, **CLOSE)


@pytest.mark.parametrize(
    ("pack", "decay", "key_width"),
    [
        ("1", None, 24),
        ("17", None, 32),
        ("65", MIN_LOG_DECAY, 24),
        ("65", -1e-6, 32),
        ("packed, starting inside chunks", None, 24),
    ],
)
def test_gradients_are_those_of_the_recurrence(pack, decay, key_width, device):
    lengths, starts = PACKS[pack]
    inputs = [x.requires_grad_() for x in make_inputs(lengths, key_width, decay=decay)]
    expected = recurrence(*inputs[:5], lengths, inputs[5])
    generator = torch.Generator().manual_seed(1)
    weights = [
        torch.randn(x.shape, generator=generator, dtype=torch.float64, requires_grad=False)
        for x in expected
    ]

    def gradients(results):
        pairs = zip(results, weights, strict=True)
        return torch.autograd.grad(sum((x.cpu().double() * w).sum() for x, w in pairs), inputs)

    ours = gradients(run(inputs, lengths, starts, device=device))
    for name, mine, exact in zip(
        ["q", "k", "v", "g", "beta", "state"], ours, gradients(expected), strict=True
    ):
        torch.testing.assert_close(
            mine, exact, **CLOSE, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("decay", [MIN_LOG_DECAY, -1e-6])
def test_outputs_are_exact_with_every_gate_at_one_end(decay, device):
    inputs = make_inputs([65], key_width=32, decay=decay)
    expected = recurrence(*inputs[:5], [65], inputs[5])
    actual = run(inputs, [65], device=device)
    for ours, exact in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours.cpu().double(), exact, **CLOSE)


def test_the_inverse_is_stable_when_one_key_repeats(device):
    # Equal keys, full writes, no decay: powers of the coupling would reach 1e18.
    q, k, v, g, beta, state = make_inputs([64], key_width=32)
    worst = [q, k[:1].expand_as(k), v, torch.zeros_like(g), torch.ones_like(beta), state]
    expected = recurrence(*worst[:5], [64], state)
    actual = run(worst, [64], device=device)
    torch.testing.assert_close(actual[0].cpu().double(), expected[0], **CLOSE)


def test_bfloat16_inputs_give_bfloat16_outputs_and_float32_states(device):
    inputs = [x.bfloat16().double() for x in make_inputs([40])]
    expected = recurrence(*inputs[:5], [40], inputs[5])
    out, state = run(inputs, [40], dtype=torch.bfloat16, device=device)
    assert (out.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(out.cpu().double(), expected[0], rtol=0.02, atol=0.02)
    torch.testing.assert_close(state.cpu().double(), expected[1], rtol=0.02, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_open_chunk_replayed_from_its_boundary_gives_the_bits_of_the_whole(dtype, device):
    inputs = make_inputs([128])
    whole, _ = run(inputs, [128], dtype=dtype, device=device)
    _, boundary = run([*(x[:64] for x in inputs[:5]), inputs[5]], [64], dtype=dtype, device=device)
    # Ends inside the first tile, at a tile's end, and in a later tile; one pack of all.
    lengths = [1, 9, 16, 37]
    packed = [torch.cat([x[64 : 64 + n] for n in lengths]) for x in inputs[:5]]
    replayed, _ = run(
        [*packed, boundary.expand(4, -1, -1, -1)], lengths, dtype=dtype, device=device
    )
    for length, ours in zip(lengths, replayed.split(lengths), strict=True):
        assert torch.equal(ours, whole[64 : 64 + length])


def test_a_step_advances_the_named_slots_and_no_other(device):
    from kernels.delta_attention.decode import delta_step_triton

    q, k, v, g, beta, states = make_inputs([1] * 5)
    chosen = torch.tensor([4, 0, 3])
    inputs = [x[:3].float().to(device) for x in (q, k, v, g, beta)]
    pool = states.float().to(device)
    expected, advanced = recurrence(*(x[:3] for x in (q, k, v, g, beta)), [1] * 3, states[chosen])
    out = delta_step_triton(*inputs, pool, chosen.to(device))
    torch.testing.assert_close(out.cpu().double(), expected, **CLOSE)
    torch.testing.assert_close(pool.cpu().double()[chosen], advanced, **CLOSE)
    assert torch.equal(pool.cpu()[[1, 2]], states[[1, 2]].float())


def test_states_that_cannot_be_updated_in_place_are_refused(device):
    from kernels.delta_attention.decode import delta_step_triton

    *inputs, states = (x.to(device) for x in make_inputs([1]))
    with pytest.raises(ValueError, match="updated in place"):
        delta_step_triton(*inputs, states, torch.zeros(1, dtype=torch.long, device=device))


def test_a_type_without_kernel_is_refused(device):
    with pytest.raises(ValueError, match=r"no Triton kernel for torch\.float64"):
        run(make_inputs([1]), [1], dtype=torch.float64, device=device)
