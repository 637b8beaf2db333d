"""The chunked delta rule against an oracle of plain loops that shares no code with it.

The oracle is the recurrence in float64, one head and one token at a time, with its own backward
pass, which finite differences hold in place.
"""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.delta_attention import MIN_LOG_DECAY, delta_attention, delta_attention_step
from kernels.delta_attention.chunks import Inputs, prepare
from kernels.delta_attention.reference import delta_recurrent
from kernels.delta_attention.segments import delta_chunked

LENGTHS = [1, 15, 16, 17, 63, 64, 65, 130]
PACKS = [
    ([0, 1, 16, 33], None),
    ([0, 130, 193, 257, 258], None),
    ([0, 40, 45, 175], [30, 63, 64]),
    ([0, 200], [1]),
]
NAMES = ("q", "k", "v", "g", "beta", "state")


def make_inputs(num_tokens: int, num_sequences: int, key_width: int = 8) -> list[Tensor]:
    generator = torch.Generator().manual_seed(num_tokens)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    q, k = (draw(num_tokens, 2, key_width) for _ in range(2))
    q, k = (x / x.norm(dim=-1, keepdim=True) for x in (q, k))
    v = draw(num_tokens, 2, 5)
    g = MIN_LOG_DECAY * draw(num_tokens, 2, key_width).sigmoid()
    beta = draw(num_tokens, 2).sigmoid()
    return [q, k, v, g, beta, draw(num_sequences, 2, key_width, 5)]


def oracle_head(q, k, v, g, beta, state):
    """Run one head of one sequence; also return what its backward pass needs."""
    outputs, kept = [], []
    for t in range(len(q)):
        faded = np.exp(g[t])[:, None] * state
        missing = v[t] - k[t] @ faded
        state = faded + np.outer(k[t], beta[t] * missing)
        outputs.append(q[t] @ state / np.sqrt(len(k[t])))
        kept.append((faded, missing, state))
    return np.array(outputs), state, kept


def oracle_head_backward(q, k, v, g, beta, kept, output_grad, state_grad):
    """Gradients of one head, from the last token to the first."""
    grads = [np.zeros_like(x) for x in (q, k, v, g, beta)]
    erase_grads, write_grads = np.zeros_like(k), np.zeros_like(k)
    q_grad, k_grad, v_grad, g_grad, beta_grad = grads
    scale = 1 / np.sqrt(k.shape[1])
    for t in reversed(range(len(q))):
        faded, missing, state = kept[t]
        q_grad[t] = scale * state @ output_grad[t]
        state_grad = state_grad + scale * np.outer(q[t], output_grad[t])
        written = state_grad.T @ k[t]
        write_grads[t] = beta[t] * state_grad @ missing
        erase_grads[t] = -beta[t] * faded @ written
        k_grad[t] = write_grads[t] + erase_grads[t]
        v_grad[t] = beta[t] * written
        beta_grad[t] = written @ missing
        faded_grad = state_grad - beta[t] * np.outer(k[t], written)
        g_grad[t] = (faded_grad * faded).sum(axis=1)
        state_grad = np.exp(g[t])[:, None] * faded_grad
    return grads, state_grad, (erase_grads, write_grads)


def oracle(inputs, bounds, output_grad=None, final_grad=None):
    """Outputs, final states and, with upstream gradients, the gradients of all six inputs."""
    q, k, v, g, beta, state = (x.detach().double().numpy() for x in inputs)
    output, final = np.zeros_like(v), np.zeros_like(state)
    grads = [np.zeros_like(x) for x in (q, k, v, g, beta, state)]
    for row, (start, stop) in enumerate(itertools.pairwise(bounds)):
        for head in range(v.shape[1]):
            place = np.s_[start:stop, head]
            own = [x[place] for x in (q, k, v, g, beta)]
            output[place], final[row, head], kept = oracle_head(*own, state[row, head])
            if output_grad is None:
                continue
            upstream = output_grad[place].numpy(), final_grad[row, head].numpy()
            own_grads, grads[5][row, head], _ = oracle_head_backward(*own, kept, *upstream)
            for grad, own_grad in zip(grads, own_grads, strict=False):
                grad[place] = own_grad
    return torch.tensor(output), torch.tensor(final), [torch.tensor(grad) for grad in grads]


def differentiate(inputs, bounds, starts=None):
    """Outputs, final states, upstream gradients and gradients of `delta_attention`."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    *tokens, state = inputs
    places = None if starts is None else torch.tensor(starts)
    output, final = delta_attention(*tokens, torch.tensor(bounds), state, places)
    generator = torch.Generator().manual_seed(1)
    upstream = [
        torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in (output, final)
    ]
    loss = (output * upstream[0]).sum() + (final * upstream[1]).sum()
    return output, final, upstream, torch.autograd.grad(loss, inputs)


def assert_equals_oracle(inputs, bounds, starts=None, tolerance=1e-10):
    output, final, upstream, grads = differentiate(inputs, bounds, starts)
    expected_output, expected_final, expected_grads = oracle(inputs, bounds, *upstream)
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(output.double(), expected_output, **close)
    torch.testing.assert_close(final.double(), expected_final, **close)
    for name, grad, expected in zip(NAMES, grads, expected_grads, strict=True):
        torch.testing.assert_close(
            grad.double(), expected, **close, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_the_oracles_gradients_are_finite_differences():
    inputs, bounds = make_inputs(5, 2, key_width=3), [0, 2, 5]
    upstream = [torch.randn_like(inputs[2]), torch.randn_like(inputs[5])]
    *_, grads = oracle(inputs, bounds, *upstream)

    def loss():
        output, final, _ = oracle(inputs, bounds)
        return float((output * upstream[0]).sum() + (final * upstream[1]).sum())

    for x, grad in zip(inputs, grads, strict=True):
        numbers = x.view(-1)
        for i in range(0, len(numbers), 7):
            center = float(numbers[i])
            numbers[i] = center + 1e-6
            above = loss()
            numbers[i] = center - 1e-6
            slope = (above - loss()) / 2e-6
            numbers[i] = center
            assert slope == pytest.approx(float(grad.view(-1)[i]), rel=1e-6, abs=1e-8)


def test_the_gradient_of_decay_needs_only_those_of_its_readers_and_writers():
    # What the chunked backward pass is built on.
    *tokens, state = make_inputs(9, 1)
    q, k, v, g, beta = (x[:, 0].numpy() for x in tokens)
    _, final, kept = oracle_head(q, k, v, g, beta, state[0, 0].numpy())
    output_grad, final_grad = np.sin(v), np.cos(final)
    grads, _, (erase, write) = oracle_head_backward(q, k, v, g, beta, kept, output_grad, final_grad)
    at_each = q * grads[0] + k * erase - k * write
    expected = at_each[::-1].cumsum(axis=0)[::-1] + (final_grad * final).sum(axis=1)
    np.testing.assert_allclose(grads[3], expected, atol=1e-12)


@pytest.mark.parametrize("num_tokens", LENGTHS)
def test_one_sequence_equals_the_oracle(num_tokens):
    assert_equals_oracle(make_inputs(num_tokens, 1), [0, num_tokens])


@pytest.mark.parametrize(("bounds", "starts"), PACKS)
def test_packed_sequences_equal_the_oracle(bounds, starts):
    assert_equals_oracle(make_inputs(bounds[-1], len(bounds) - 1), bounds, starts)


def test_sequences_of_several_segments_equal_the_oracle(monkeypatch):
    monkeypatch.setattr("kernels.delta_attention.segments.MATRICES", 4)
    bounds = [0, 300, 310, 540, 604, 700]
    assert_equals_oracle(make_inputs(700, 5), bounds, [0, 10, 63, 7, 64])


@pytest.mark.parametrize("key_width", [3, 24])
def test_a_key_width_that_is_no_power_of_two_equals_the_oracle(key_width):
    assert_equals_oracle(make_inputs(70, 2, key_width), [0, 30, 70])


@pytest.mark.parametrize("decay", [MIN_LOG_DECAY, -1e-6, 0.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_every_gate_at_one_end_equals_the_oracle(decay, dtype):
    q, k, v, g, beta, state = make_inputs(130, 1)
    inputs = [x.to(dtype) for x in (q, k, v, torch.full_like(g, decay), beta, state)]
    assert_equals_oracle(inputs, [0, 130], tolerance=1e-10 if dtype == torch.float64 else 3e-5)


def test_float32_is_exact_where_gates_open_behind_a_deep_decay():
    # exp of a running sum would lose the gates' last digits against 75 nats.
    q, k, v, g, beta, state = make_inputs(128, 1)
    g = torch.full_like(g, -0.01)
    g[0::16] = g[1::16] = MIN_LOG_DECAY
    g[64:72] = MIN_LOG_DECAY
    inputs = [x.float() for x in (q, k, v, g, beta, state)]
    expected, _, _ = oracle(inputs, [0, 128])
    output, _ = delta_attention(*inputs[:5], torch.tensor([0, 128]), inputs[5])
    assert (output.double() - expected).abs().max() < 1e-6


def test_chunks_stay_accurate_when_one_key_repeats():
    # The worst case for inverting the chunk's system: equal keys, full writes, no decay.
    q, k, v, g, beta, state = (x.float() for x in make_inputs(64, 1))
    worst = [q, k[:1].expand_as(k).contiguous(), v, 0 * g, 0 * beta + 1, state]
    expected, _, _ = oracle(worst, [0, 64])
    output, _ = delta_attention(*worst[:5], torch.tensor([0, 64]), state)
    torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=1e-5)


def test_bfloat16_computes_in_float32():
    *tokens, state = (x.bfloat16() for x in make_inputs(100, 1))
    bounds = torch.tensor([0, 100])
    output, final = delta_attention(*tokens, bounds, state.float())
    wide, wide_final = delta_chunked(*(x.float() for x in tokens), bounds, state.float())
    assert output.dtype == torch.bfloat16
    assert torch.equal(output, wide.bfloat16())
    assert torch.equal(final, wide_final)


def test_token_by_token_is_the_specification():
    bounds = [0, 3, 20]
    *tokens, state = make_inputs(20, 2)
    expected, expected_final, _ = oracle([*tokens, state], bounds)
    output, final = delta_recurrent(*tokens, torch.tensor(bounds), state)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(final, expected_final)


@pytest.mark.parametrize("cut", [1, 16, 23, 64, 100])
def test_splitting_a_sequence_anywhere_changes_nothing(cut):
    *tokens, state = make_inputs(130, 1)
    expected, expected_final = delta_attention(*tokens, torch.tensor([0, 130]), state)
    head, between = delta_attention(*(x[:cut] for x in tokens), torch.tensor([0, cut]), state)
    rest, final = delta_attention(
        *(x[cut:] for x in tokens), torch.tensor([0, 130 - cut]), between, torch.tensor([cut])
    )
    torch.testing.assert_close(torch.cat([head, rest]), expected)
    torch.testing.assert_close(final, expected_final)


@pytest.mark.parametrize("start", [0, 37])
def test_splitting_where_a_chunk_ends_changes_no_bit(start):
    *tokens, state = (x.float() for x in make_inputs(200, 1))
    whole, middle = torch.tensor([start]), 128 - start
    expected, expected_final = delta_attention(*tokens, torch.tensor([0, 200]), state, whole)
    head, between = delta_attention(
        *(x[:middle] for x in tokens), torch.tensor([0, middle]), state, whole
    )
    rest, final = delta_attention(
        *(x[middle:] for x in tokens), torch.tensor([0, 200 - middle]), between, torch.tensor([128])
    )
    assert torch.equal(torch.cat([head, rest]), expected)
    assert torch.equal(final, expected_final)


def test_no_number_is_subnormal_where_memory_fades():
    # Right either way, but a CPU multiplies subnormal numbers fifty times slower.
    q, k, v, g, beta, _ = (x.float() for x in make_inputs(64, 1))
    for decay in torch.linspace(MIN_LOG_DECAY, -0.1, 99):
        rows = (x.transpose(0, 1).contiguous() for x in (q, k, v, 0 * g + decay))
        chunks = prepare(Inputs(*rows, beta.T.unsqueeze(-1)))
        for name in ("query", "erase", "write", "kept", "mixing", "inverse"):
            x = getattr(chunks, name).abs()
            assert not ((x > 0) & (x < torch.finfo(torch.float32).tiny)).any(), (name, decay)


def test_every_row_of_the_outputs_is_written(monkeypatch):
    empty = torch.Tensor.new_empty
    monkeypatch.setattr(
        torch.Tensor,
        "new_empty",
        lambda self, *size, **how: empty(self, *size, **how).fill_(float("nan")),
    )
    output, final, _, grads = differentiate(make_inputs(150, 2), [0, 70, 150])
    for x in (output, final, *grads):
        assert x.isfinite().all()


def test_a_step_leaves_its_input_state_alone():
    q, k, v, g, beta, state = make_inputs(1, 1)
    before = state.clone()
    _, after = delta_attention_step(q, k, v, g, beta, state)
    assert torch.equal(state, before)
    assert not torch.equal(after, before)


def test_a_step_in_bfloat16_computes_in_float32():
    *tokens, state = (x.bfloat16() for x in make_inputs(3, 3))
    output, after = delta_attention_step(*tokens, state.float())
    wide, wide_after = delta_attention_step(*(x.float() for x in tokens), state.float())
    assert torch.equal(output, wide.bfloat16())
    assert torch.equal(after, wide_after)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("k", lambda x: x[:, :1], r"k has shape \[3, 1, 8\]"),
        (
            "state",
            lambda x: x[:2],
            r"state has shape \[2, 2, 8, 5\], expected \[S, H, K, V\] with S = 3",
        ),
        ("state", lambda x: x.float(), "state is torch.float32 on cpu, expected torch.float64"),
    ],
)
def test_a_step_that_does_not_fit_is_refused_with_the_reason(name, value, message):
    call = dict(zip(NAMES, make_inputs(3, 3), strict=True))
    call[name] = value(call[name])
    with pytest.raises(ValueError, match=message):
        delta_attention_step(**call)


def test_inputs_are_not_changed():
    inputs = make_inputs(70, 1)
    before = [x.clone() for x in inputs]
    differentiate(inputs, [0, 70])
    assert all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True))


def spoil(name, value):
    *tokens, state = make_inputs(10, 2)
    call = dict(zip(NAMES, tokens, strict=False))
    call |= {"cu_seqlens": torch.tensor([0, 4, 10]), "initial_state": state, "starts": None}
    call[name] = value(call[name])
    return call


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("k", lambda x: x[:9], r"delta_attention: k has shape \[9, 2, 8\]"),
        ("beta", lambda x: x[..., None], r"beta has shape \[10, 2, 1\], expected \[T, H\]"),
        ("v", lambda x: x.float(), r"v is torch.float32, q is torch.float64"),
        ("g", lambda x: x.mT.contiguous().mT, "g has strides"),
        ("q", lambda x: x[:0], "q is empty"),
        ("cu_seqlens", lambda x: x[:2], "runs from 0 to 4, the pack from 0 to 10"),
        ("cu_seqlens", lambda x: x.float(), "expected int32 or int64"),
        ("initial_state", lambda x: x[:1], r"initial_state has shape \[1, 2, 8, 5\]"),
        ("initial_state", lambda x: x.float(), "initial_state is torch.float32"),
        ("initial_state", lambda x: x.to("meta"), "on meta, expected torch.float64 on cpu"),
        ("starts", lambda _: torch.tensor([1]), "expected 2 integers"),
        ("starts", lambda _: torch.tensor([0.0, 1.0]), "expected 2 integers"),
        ("starts", lambda _: torch.tensor([0, -1]), "a position is at least 0"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_with_the_reason(name, value, message):
    with pytest.raises(ValueError, match=message):
        delta_attention(**spoil(name, value))
