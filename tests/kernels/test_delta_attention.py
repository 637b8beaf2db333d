"""The chunked delta rule is the recurrence, for every length and at both ends of the decay."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from kernels.delta_attention import MIN_LOG_DECAY, delta_attention, delta_attention_step
from kernels.delta_attention.reference import delta_recurrent


def make_inputs(num_tokens: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(num_tokens)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    q = normalize(draw(2, num_tokens, 3, 8), dim=-1)
    k = normalize(draw(2, num_tokens, 3, 8), dim=-1)
    v = draw(2, num_tokens, 3, 5)
    g = MIN_LOG_DECAY * draw(2, num_tokens, 3, 8).sigmoid()
    beta = draw(2, num_tokens, 3).sigmoid()
    state = draw(2, 3, 8, 5)
    return [x.to(dtype) for x in (q, k, v, g, beta, state)]


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 33])
@pytest.mark.parametrize("has_state", [False, True])
def test_chunks_equal_the_recurrence(num_tokens, has_state):
    *inputs, state = make_inputs(num_tokens)
    state = state if has_state else None
    expected = delta_recurrent(*inputs, state)
    actual = delta_attention(*inputs, state)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("decay", [MIN_LOG_DECAY, -1e-6])
def test_chunks_are_exact_in_float32_with_every_gate_at_one_end(decay):
    q, k, v, g, beta, state = make_inputs(33)
    expected = delta_recurrent(q, k, v, torch.full_like(g, decay), beta, state)
    q, k, v, g, beta, state = (x.float() for x in (q, k, v, g, beta, state))
    actual = delta_attention(q, k, v, torch.full_like(g, decay), beta, state)
    torch.testing.assert_close(actual[0].double(), expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(actual[1].double(), expected[1], rtol=1e-5, atol=1e-5)


def test_chunks_stay_accurate_when_one_key_repeats():
    # The worst case for inverting the chunk's system: equal keys, full writes, no decay.
    q, k, v, g, beta, state = make_inputs(32)
    k = k[:, :1].expand_as(k)
    worst = (q, k, v, torch.zeros_like(g), torch.ones_like(beta), state)
    expected = delta_recurrent(*worst)[0]
    actual = delta_attention(*(x.float() for x in worst))[0]
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5)


def test_gradients_of_chunks_equal_those_of_the_recurrence():
    inputs = [x.requires_grad_() for x in make_inputs(19)]
    upstream = torch.randn(2, 19, 3, 5, dtype=torch.float64)

    def gradients(form):
        output, state = form(*inputs)
        return torch.autograd.grad((output * upstream).sum() + state.square().sum(), inputs)

    torch.testing.assert_close(gradients(delta_attention), gradients(delta_recurrent))


def test_padding_changes_neither_outputs_nor_state():
    *inputs, state = make_inputs(21)
    padded = [torch.nn.functional.pad(x, [0, 0] * (x.dim() - 2) + [0, 9]) for x in inputs]
    output, final = delta_attention(*padded, state)
    expected, expected_final = delta_attention(*inputs, state)
    torch.testing.assert_close(output[:, :21], expected)
    torch.testing.assert_close(final, expected_final)


def test_splitting_a_sequence_anywhere_changes_nothing():
    *inputs, state = make_inputs(33)
    expected, _ = delta_attention(*inputs, state)
    for cut in (1, 16, 23):
        head, between = delta_attention(*(x[:, :cut] for x in inputs), state)
        rest, _ = delta_attention(*(x[:, cut:] for x in inputs), between)
        torch.testing.assert_close(torch.cat([head, rest], dim=1), expected)


def test_a_step_leaves_its_input_state_alone():
    q, k, v, g, beta, state = make_inputs(1)
    before = state.clone()
    _, after = delta_attention_step(q[:, 0], k[:, 0], v[:, 0], g[:, 0], beta[:, 0], state)
    assert torch.equal(state, before)
    assert not torch.equal(after, before)
