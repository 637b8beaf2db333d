"""Replay decoding equals the training forward in every bit, and so does every packing."""

import itertools
import random

import pytest
import torch
from torch import Tensor

from kernels.delta_attention import delta_attention
from kernels.delta_attention.replay import ReplayState, delta_attention_replay
from kernels.delta_attention.segments import delta_chunked

SIZES = [(2, 32, 32), (3, 24, 20), (1, 8, 5)]
LENGTH = 4096


def make_tokens(num_tokens: int, heads: int, key_width: int, value_width: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(num_tokens)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    q, k = (draw(num_tokens, heads, key_width) for _ in range(2))
    q, k = (x / x.norm(dim=-1, keepdim=True) for x in (q, k))
    g = -5 * draw(num_tokens, heads, key_width).sigmoid()
    g[100:200] = -5.0
    g[200:300] = -1e-4
    return [q, k, draw(num_tokens, heads, value_width), g, draw(num_tokens, heads).sigmoid()]


def bounds_of(lengths) -> Tensor:
    return torch.tensor(list(itertools.accumulate(lengths, initial=0)))


def pack(pieces) -> list[Tensor]:
    return [torch.cat(parts) for parts in zip(*pieces, strict=True)]


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def num_threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize(("heads", "key_width", "value_width"), SIZES)
def test_replay_over_4096_tokens_equals_the_training_forward_in_every_bit(
    heads, key_width, value_width
):
    tokens = make_tokens(LENGTH, heads, key_width, value_width)
    expected, _ = delta_attention(*tokens, torch.tensor([0, LENGTH]))
    state = ReplayState(torch.zeros(1, heads, key_width, value_width))
    # One token at a time around chunk ends and where gates are extreme, any number elsewhere.
    generator = random.Random(heads)
    done, outputs = 0, []
    while done < LENGTH:
        alone = done < 330 or 2000 <= done < 2070 or done > LENGTH - 66
        stop = min(done + (1 if alone else generator.randrange(1, 180)), LENGTH)
        new = [x[done:stop] for x in tokens]
        outputs.append(delta_attention_replay(*new, torch.tensor([0, stop - done]), state))
        done = stop
    assert torch.equal(torch.cat(outputs), expected)


def test_a_batch_at_different_positions_decodes_like_each_sequence_alone(num_threads):
    lengths = [70, 64, 1, 130, 63, 200]
    sequences = [make_tokens(length + 40, 2, 32, 32) for length in lengths]
    begun = ReplayState(torch.zeros(len(lengths), 2, 32, 32))
    pieces = [[x[:n] for x in own] for own, n in zip(sequences, lengths, strict=True)]
    outputs = [delta_attention_replay(*pack(pieces), bounds_of(lengths), begun)]
    outputs = [list(outputs[0].split(lengths))]
    for step in range(40):
        new = [
            [x[n + step : n + step + 1] for x in own]
            for own, n in zip(sequences, lengths, strict=True)
        ]
        output = delta_attention_replay(*pack(new), torch.arange(len(lengths) + 1), begun)
        outputs.append(list(output.split(1)))
    for row, own in enumerate(sequences):
        expected, _ = delta_attention(*own, torch.tensor([0, len(own[0])]))
        assert torch.equal(torch.cat([output[row] for output in outputs]), expected), row


def test_sequences_may_begin_anywhere_and_with_a_state():
    tokens = make_tokens(150, 2, 32, 32)
    state, start = torch.randn(1, 2, 32, 32), torch.tensor([37])
    expected, _ = delta_attention(*tokens, torch.tensor([0, 150]), state, start)
    begun, outputs = ReplayState(state, start), []
    for first, last in itertools.pairwise([0, 1, 20, 26, 27, 28, 100, 150]):
        new = [x[first:last] for x in tokens]
        outputs.append(delta_attention_replay(*new, torch.tensor([0, last - first]), begun))
    assert torch.equal(torch.cat(outputs), expected)


@pytest.mark.parametrize("form", [delta_attention, delta_chunked], ids=["loop", "chunks"])
@pytest.mark.parametrize(("heads", "key_width", "value_width"), SIZES)
def test_a_sequence_has_the_same_bits_in_every_pack(
    num_threads, heads, key_width, value_width, form
):
    tokens = make_tokens(500, heads, key_width, value_width)
    expected, expected_final = form(*tokens, torch.tensor([0, 500]))
    others = make_tokens(1600, heads, key_width, value_width)
    for lengths in ([1], [63, 1], [700, 1, 64], [5] * 70):
        ends = [0, *itertools.accumulate(lengths)]
        neighbours = [[x[a:b] for x in others] for a, b in itertools.pairwise(ends)]
        for place in (0, len(lengths)):
            pieces = [*neighbours[:place], tokens, *neighbours[place:]]
            bounds = bounds_of(len(piece[0]) for piece in pieces)
            output, final = form(*pack(pieces), bounds)
            assert torch.equal(output[bounds[place] : bounds[place + 1]], expected)
            assert torch.equal(final[place], expected_final[0])


def test_a_pack_of_another_number_of_sequences_is_refused():
    tokens = make_tokens(4, 1, 8, 5)
    with pytest.raises(ValueError, match="cu_seqlens holds 2 sequences, the state 1"):
        delta_attention_replay(
            *tokens, torch.tensor([0, 2, 4]), ReplayState(torch.zeros(1, 1, 8, 5))
        )
