"""Attention over paged latents: equal to a softmax written out, and to itself in any batch."""

import math

import pytest
import torch

from kernels.latent_attention import (
    TILE,
    PagedBatch,
    packed_latent_attention,
    paged_latent_attention,
)

PAGE_TOKENS = 2 * TILE
ATOL = 2e-5


def written_out(q, latents, scale):
    """Attend from the last tokens of one sequence, score by score, in float64."""
    q, latents = q.double(), latents.double()
    output = torch.empty_like(q)
    past = len(latents) - len(q)
    for t in range(len(q)):
        seen = latents[: past + t + 1]
        for h in range(q.shape[1]):
            weights = torch.exp(scale * seen @ q[t, h] - (scale * seen @ q[t, h]).max())
            output[t, h] = (weights[:, None] * seen).sum(dim=0) / weights.sum()
    return output


class Cache:
    """Pages that lie apart, handed out in a scrambled order."""

    def __init__(self, num_pages, rank, generator, dtype=torch.float32):
        size = 2 * rank * PAGE_TOKENS
        self.pages = torch.full((num_pages, size + 40), torch.nan, dtype=dtype)[:, 40:]
        self.free = torch.randperm(num_pages, generator=generator).tolist()
        self.tables = {}

    def attend(self, new, scale):
        """Extend sequences by (name, q, latents); gives their outputs."""
        lengths, tables = [], []
        for name, q, _ in new:
            table, length = self.tables.get(name, ([], 0))
            length += len(q)
            while len(table) * PAGE_TOKENS < length:
                table.append(self.free.pop())
            self.tables[name] = table, length
            lengths.append(length)
            tables.append(table)
        width = max(map(len, tables))
        counts = [len(q) for _, q, _ in new]
        batch = PagedBatch(
            cu_seqlens=torch.tensor([0, *counts]).cumsum(0).int(),
            lengths=torch.tensor(lengths).int(),
            page_table=torch.tensor([table + [0] * (width - len(table)) for table in tables]).int(),
        )
        q, latents = (torch.cat(x) for x in list(zip(*new, strict=True))[1:])
        output = paged_latent_attention(q, latents, self.pages, batch, scale)
        return output.split(counts)


def random_sequence(num_tokens, num_heads, rank, generator):
    q = 3 * torch.randn(num_tokens, num_heads, rank, generator=generator)
    return q, torch.randn(num_tokens, rank, generator=generator)


@pytest.mark.parametrize(("num_heads", "rank"), [(4, 32), (1, 33), (6, 40)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["compiled", "reference"])
def test_new_tokens_see_all_before_them_and_none_after(num_heads, rank, dtype):
    generator = torch.Generator().manual_seed(0)
    scale = rank**-0.5
    cache = Cache(12, rank, generator, dtype)
    lengths = {"a": 1, "b": TILE, "c": 3 * TILE + 5}
    whole = {}
    for name, length in lengths.items():
        q, latents = random_sequence(length + 9, num_heads, rank, generator)
        whole[name] = q.to(dtype), latents.to(dtype)
    parts = ({n: slice(0, lengths[n]) for n in whole}, {n: slice(lengths[n], None) for n in whole})
    for part in parts:
        new = [(n, q[part[n]], latents[part[n]]) for n, (q, latents) in whole.items()]
        for (name, _, _), output in zip(new, cache.attend(new, scale), strict=True):
            q, latents = whole[name]
            latents = latents[: part[name].stop]
            expected = written_out(q[part[name]], latents, scale)
            torch.testing.assert_close(output.double(), expected, atol=ATOL, rtol=0)


def test_a_token_has_the_same_bits_in_any_chunk_and_any_company():
    generator = torch.Generator().manual_seed(1)
    q, latents = random_sequence(1000, 4, 32, generator)
    (expected,) = Cache(40, 32, generator).attend([("a", q, latents)], 0.2)
    cache = Cache(80, 32, generator)
    start = 0
    for step, length in enumerate((1, 1, 17, 300, 1, 64, 5, 500, 1, 110)):
        rows = slice(start, start + length)
        others = [(f"{step}/{i}", *random_sequence(1 + 30 * i, 4, 32, generator)) for i in range(3)]
        *_, output = cache.attend([*others, ("a", q[rows], latents[rows])], 0.2)
        assert torch.equal(output, expected[rows]), f"differs in the part of {length} tokens"
        start += length
    assert start == 1000


def test_scores_far_apart_neither_overflow_nor_leave_a_trace():
    q = torch.full((1, 4, 32), 40.0)
    latents = torch.cat([torch.full((50, 32), -1.0), torch.full((1, 32), 1.0)])
    cache = Cache(4, 32, torch.Generator().manual_seed(2))
    cache.attend([("a", q.expand(50, -1, -1), latents[:50])], 1.0)
    (output,) = cache.attend([("a", q, latents[50:])], 1.0)
    assert torch.equal(output, torch.ones(1, 4, 32))


def test_weights_are_those_of_the_exponential():
    generator = torch.Generator().manual_seed(3)
    latents = torch.rand(200, 1, generator=generator).mul(80)
    latents[0] = 0.0
    latents = torch.cat([latents, torch.zeros(200, 31)], dim=1)
    q = torch.zeros(1, 1, 32)
    q[0, 0, 0] = -1.0
    cache = Cache(8, 32, generator)
    cache.attend([("a", q.expand(199, -1, -1), latents[:199])], 1.0)
    (output,) = cache.attend([("a", q, latents[199:])], 1.0)
    weights = [math.exp(-float(x)) for x in latents[:, 0]]
    products = zip(weights, latents[:, 0].tolist(), strict=True)
    expected = sum(w * x for w, x in products) / sum(weights)
    assert output[0, 0, 0].item() == pytest.approx(expected, rel=2e-6)


def test_whole_sequences_have_the_bits_of_cached_ones():
    generator = torch.Generator().manual_seed(5)
    lengths = [1, TILE, 700, 45, 5]
    sequences = [random_sequence(length, 4, 32, generator) for length in lengths]
    q, latents = (torch.cat(x) for x in zip(*sequences, strict=True))
    output = packed_latent_attention(q, latents, torch.tensor([0, *lengths]).cumsum(0), 0.2)
    cache = Cache(30, 32, generator)
    for name, (own_q, own_latents) in enumerate(sequences):
        cut = len(own_q) // 3
        parts = [slice(0, cut), slice(cut, None)] if cut else [slice(None)]
        expected = [cache.attend([(name, own_q[x], own_latents[x])], 0.2)[0] for x in parts]
        start = sum(lengths[:name])
        assert torch.equal(output[start : start + lengths[name]], torch.cat(expected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["compiled", "reference"])
@pytest.mark.parametrize(("num_heads", "rank"), [(4, 32), (1, 33)])
def test_gradients_of_whole_sequences_are_those_of_a_softmax_written_out(num_heads, rank, dtype):
    generator = torch.Generator().manual_seed(6)
    lengths = [1, 33, 90]
    q, latents = random_sequence(sum(lengths), num_heads, rank, generator)
    pull = torch.randn(q.shape, generator=generator, dtype=torch.float64)
    leaves = [x.to(dtype).requires_grad_() for x in (q, latents)]
    output = packed_latent_attention(*leaves, torch.tensor([0, *lengths]).cumsum(0), 0.2)
    grads = torch.autograd.grad((output * pull).sum(), leaves)
    wide = [x.double().requires_grad_() for x in (q, latents)]
    pairs = zip(*(x.split(lengths) for x in wide), strict=True)
    expected = torch.cat([written_out_whole(*pair, 0.2) for pair in pairs])
    torch.testing.assert_close(output.double(), expected, atol=ATOL, rtol=0)
    for grad, wanted in zip(grads, torch.autograd.grad((expected * pull).sum(), wide), strict=True):
        torch.testing.assert_close(grad.double(), wanted, atol=1e-4, rtol=1e-4)


def written_out_whole(q, latents, scale):
    """Attend from every token of one sequence, head by head."""
    outputs = []
    for h in range(q.shape[1]):
        scores = scale * q[:, h] @ latents.T
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
        outputs.append(scores.masked_fill(hidden, -math.inf).softmax(dim=1) @ latents)
    return torch.stack(outputs, dim=1)


def test_a_pack_that_does_not_end_at_its_last_token_is_refused():
    q, latents = random_sequence(3, 4, 32, torch.Generator().manual_seed(7))
    with pytest.raises(ValueError, match="cu_seqlens runs from 0 to 2, the pack from 0 to 3"):
        packed_latent_attention(q, latents, torch.tensor([0, 2]), 0.2)
    with pytest.raises(ValueError, match="latent has shape"):
        packed_latent_attention(q, latents[:, :-1], torch.tensor([0, 3]), 0.2)


def test_a_batch_that_does_not_fit_its_pages_is_refused():
    q, latents = random_sequence(3, 4, 32, torch.Generator().manual_seed(4))
    pages = torch.zeros(4, 2 * 32 * PAGE_TOKENS)

    def attend(lengths, pages=pages, table=((0,),)):
        batch = PagedBatch(torch.tensor([0, 3]), torch.tensor(lengths), torch.tensor(table))
        paged_latent_attention(q, latents, pages, batch, 1.0)

    with pytest.raises(ValueError, match="sequence 0 has 2 tokens, 3 of them new"):
        attend([2])
    with pytest.raises(ValueError, match="in pages for 64"):
        attend([65])
    with pytest.raises(ValueError, match="lengths of 2 and pages of 1 sequences"):
        attend([3, 3])
    with pytest.raises(ValueError, match="no multiple of 2 R TILE = 2048"):
        attend([3], pages=pages[:, :-1])
    with pytest.raises(ValueError, match="pages is torch"):
        attend([3], pages=pages.double())
