"""The delta rule on cached states: equal to the specification, and to itself in any split."""

import pytest
import torch

from kernels.delta_attention import delta_attention
from kernels.delta_attention.cached import CachedSequences, cached_delta_attention
from kernels.delta_attention.reference import delta_step
from kernels.delta_attention.segments import delta_chunked

HEADS, WIDTH, VALUES = 2, 16, 24


def random_inputs(num_tokens, generator):
    def random(*shape):
        return torch.randn(*shape, generator=generator)

    q, k = (
        torch.nn.functional.normalize(random(num_tokens, HEADS, WIDTH), dim=-1) for _ in range(2)
    )
    g = -5 * random(num_tokens, HEADS, WIDTH).sigmoid()
    return q, k, random(num_tokens, HEADS, VALUES), g, random(num_tokens, HEADS).sigmoid()


def packed(slots, lengths):
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    return CachedSequences(torch.tensor(slots), cu_seqlens, torch.zeros(len(slots)).long())


def stepped(inputs, state):
    """Run the specification token by token in float64."""
    outputs = []
    state = state.double()[None]
    for row in zip(*(x.double() for x in inputs), strict=True):
        output, state = delta_step(*(x[None] for x in row), state)
        outputs.append(output[0])
    return torch.stack(outputs), state[0]


def test_each_sequence_continues_from_its_state_and_no_other_is_touched():
    generator = torch.Generator().manual_seed(0)
    pages = torch.randn(9, 3000, generator=generator)
    before = pages.clone()
    size = HEADS * WIDTH * VALUES
    states = pages[:, 100 : 100 + size].view(9, HEADS, WIDTH, VALUES)
    slots, lengths = [7, 0, 3, 8], [1, 40, 5, 1]
    inputs = random_inputs(sum(lengths), generator)
    old = states.clone()
    output = cached_delta_attention(*inputs, states, packed(slots, lengths))
    start = 0
    for slot, length in zip(slots, lengths, strict=True):
        rows = slice(start, start + length)
        expected, state = stepped([x[rows] for x in inputs], old[slot])
        torch.testing.assert_close(output[rows].double(), expected, atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(states[slot].double(), state, atol=2e-6, rtol=1e-5)
        start += length
    assert torch.equal(pages[[1, 2, 4, 5, 6]], before[[1, 2, 4, 5, 6]]), "another page was touched"
    assert torch.equal(pages[7, :100], before[7, :100]), "memory before the state was touched"
    assert torch.equal(pages[7, 100 + size :], before[7, 100 + size :])


def test_a_sequence_has_the_same_bits_however_it_is_split_and_whatever_runs_beside_it():
    generator = torch.Generator().manual_seed(1)
    inputs = random_inputs(300, generator)
    states = torch.randn(3, HEADS, WIDTH, VALUES, generator=generator)
    whole = states.clone()
    expected = cached_delta_attention(*inputs, whole, packed([1], [300]))
    start = 0
    for length in (1, 1, 63, 64, 2, 169):
        part = [x[start : start + length] for x in inputs]
        other = random_inputs(7, generator)
        both = [torch.cat([a, b]) for a, b in zip(other, part, strict=True)]
        output = cached_delta_attention(*both, states, packed([2, 1], [7, length]))
        assert torch.equal(output[7:], expected[start : start + length])
        start += length
    assert start == 300
    assert torch.equal(states[1], whole[1])


def test_training_meets_the_bits_of_the_cached_loop_and_the_gradients_of_the_chunks():
    generator = torch.Generator().manual_seed(4)
    lengths = [1, 300, 64, 4500]  # the last is longer than a segment
    inputs = random_inputs(sum(lengths), generator)
    states = torch.randn(len(lengths), HEADS, WIDTH, VALUES, generator=generator)
    sequences = packed(range(len(lengths)), lengths)
    cached = states.clone()
    expected = cached_delta_attention(*inputs, cached, sequences)
    pull = torch.randn(expected.shape, generator=generator)
    grads = {}
    for form in (delta_attention, delta_chunked):
        leaves = [x.clone().requires_grad_() for x in (*inputs, states)]
        output, final = form(*leaves[:5], sequences.cu_seqlens, leaves[5])
        if form is delta_attention:
            assert torch.equal(output, expected)
            assert torch.equal(final, cached)
        grads[form] = torch.autograd.grad((output * pull).sum() + final.square().sum(), leaves)
    for ours, theirs in zip(grads[delta_attention], grads[delta_chunked], strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_float64_runs_the_reference():
    generator = torch.Generator().manual_seed(2)
    inputs = [x.double() for x in random_inputs(70, generator)]
    states = torch.randn(2, HEADS, WIDTH, VALUES, generator=generator).double()
    expected, state = stepped(inputs, states[1])
    output = cached_delta_attention(*inputs, states, packed([1], [70]))
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(states[1], state)


def test_states_that_do_not_fit_are_refused():
    inputs = random_inputs(3, torch.Generator().manual_seed(3))
    states = torch.zeros(4, HEADS, WIDTH, VALUES)
    with pytest.raises(ValueError, match="1 slots and 1 starts for 2 sequences"):
        cached_delta_attention(
            *inputs,
            states,
            CachedSequences(torch.tensor([0]), torch.tensor([0, 1, 3]), torch.tensor([0])),
        )
    with pytest.raises(ValueError, match="states has shape"):
        cached_delta_attention(*inputs, states[:, :, :-1], packed([0], [3]))
    with pytest.raises(ValueError, match="must be contiguous"):
        cached_delta_attention(
            *inputs, states.transpose(1, 2).contiguous().transpose(1, 2), packed([0], [3])
        )
