"""The forward of training gives the bits of a decoder that keeps its past in a cache.

The cache here is the engine's without vLLM: the same operations on the same states, token by token
and in pieces. `test_batch_invariance.py` asks the same of vLLM itself.
"""

import itertools
from dataclasses import dataclass, field

import pytest
import torch

from kernels.delta_attention.cached import CachedSequences, cached_delta_attention
from kernels.latent_attention import TILE, PagedBatch, paged_latent_attention
from kernels.rows import ROW_STEP
from kernels.short_conv import last_inputs
from model.hybrid import build_model
from model.logprobs import sequence_logprobs
from model.presets import tiny

VOCABULARY = 1024
MAX_TOKENS = 2048


@dataclass
class CachedMixer:
    """The past of one sequence, and how many of a forward's rows are new tokens of it."""

    length: int = 0
    num_new: int = 0
    tails: dict = field(default_factory=dict)
    states: dict = field(default_factory=dict)
    pages: dict = field(default_factory=dict)

    def delta(self, layer, qkv, g, beta):
        rows, bounds = slice(0, self.num_new), torch.tensor([0, self.num_new])
        heads, width = g.shape[1:]
        before = self.tails.get(layer.layer, torch.zeros(1, layer.conv_width - 1, qkv.shape[1]))
        state = self.states.setdefault(layer.layer, torch.zeros(1, heads, width, width))
        self.tails[layer.layer] = last_inputs(qkv[rows], bounds, before, layer.conv_width)
        q, k, v = layer.activate(qkv[rows], bounds, before)
        sequences = CachedSequences(torch.tensor([0]), bounds, torch.tensor([self.length]))
        output = torch.zeros_like(g)
        output[rows] = cached_delta_attention(q, k, v, g[rows], beta[rows], state, sequences)
        return output

    def latent_attention(self, layer, q, latent):
        rows, bounds = slice(0, self.num_new), torch.tensor([0, self.num_new])
        absorbed = layer.absorb(q)
        size = 2 * 4 * TILE * latent.shape[1]
        pages = self.pages.setdefault(layer.layer, torch.empty(MAX_TOKENS // (4 * TILE), size))
        table = torch.arange(len(pages)).flip(0)[None]
        batch = PagedBatch(bounds, torch.tensor([self.length + self.num_new]), table)
        output = torch.zeros_like(absorbed)
        output[rows] = paged_latent_attention(
            absorbed[rows], latent[rows], pages, batch, layer.scale
        )
        return layer.read_values(output)


@torch.no_grad()
def engine_logprobs(policy, token_ids, pieces, temperature):
    """Score as the engine does: piece by piece, rows filled up, with the sampler's steps."""
    mixer, logprobs = CachedMixer(), [torch.zeros(1)]
    targets = token_ids.roll(-1)
    for piece, wanted in zip(token_ids.split(pieces), targets.split(pieces), strict=True):
        mixer.num_new = len(piece)
        filled = torch.cat([piece, piece.new_zeros(-len(piece) % ROW_STEP)])
        logits = policy.lm_head(policy.model.run(filled, mixer).hidden)[: len(piece)]
        scores = logits.div_(temperature).log_softmax(dim=-1)
        logprobs.append(scores.gather(1, wanted[:, None]).squeeze(1))
        mixer.length += len(piece)
    return torch.cat(logprobs)[:-1]


@pytest.fixture(scope="module")
def policy():
    """A policy with uneven predictions and uneven mixtures over depth."""
    policy = build_model(tiny(VOCABULARY), seed=0)
    with torch.no_grad():
        policy.lm_head.weight.mul_(10.0)
        for name, parameter in policy.named_parameters():
            if name.endswith("res_proj.weight"):
                parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(0))
    return policy


def draw_tokens(count, seed):
    return torch.randint(VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed))


def pieces_of(length):
    """Some tokens one by one, others in pieces of many sizes."""
    sizes = [1] * 40 + [7, 200, 3, 64, 1, 31, 33, 500, 2, 129, 1000, 700]
    ends = [end for end in itertools.accumulate(sizes) if end < length]
    return [stop - start for start, stop in itertools.pairwise([0, *ends, length])]


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def num_threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize(("length", "temperature"), [(5, 1.0), (300, 0.7), (2048, 1.0)])
def test_training_scores_a_sequence_with_the_bits_of_the_engine(
    policy, num_threads, length, temperature
):
    token_ids = draw_tokens(length, seed=length)
    torch.set_num_threads(1)  # the engine's number
    expected = engine_logprobs(policy, token_ids, pieces_of(length), temperature)
    torch.set_num_threads(num_threads)
    logprobs, _ = sequence_logprobs(policy, token_ids, torch.tensor([0, length]), temperature)
    assert logprobs.requires_grad
    assert torch.equal(logprobs.detach(), expected)


def test_a_sequence_has_the_same_bits_in_every_pack_and_wherever_its_scores_are_wanted(
    policy, num_threads
):
    token_ids = draw_tokens(300, seed=300)
    expected, _ = sequence_logprobs(policy, token_ids, torch.tensor([0, 300]))
    for others in ([1], [17, 2], [900], [40] * 30):
        lengths = [*others, 300]
        pack = torch.cat([draw_tokens(sum(others), seed=1), token_ids])
        bounds = torch.tensor([0, *lengths]).cumsum(0)
        scored = torch.zeros(len(pack), dtype=torch.bool)
        scored[-300:] = torch.arange(300) % 7 == 3
        every, _ = sequence_logprobs(policy, pack, bounds)
        some, _ = sequence_logprobs(policy, pack, bounds, scored=scored)
        assert torch.equal(every[-300:], expected)
        assert torch.equal(some[scored], every[scored])


def test_a_single_score_has_the_same_bits(policy):
    token_ids, bounds = draw_tokens(100, seed=2), torch.tensor([0, 100])
    every, _ = sequence_logprobs(policy, token_ids, bounds)
    scored = torch.arange(100) == 50
    alone, _ = sequence_logprobs(policy, token_ids, bounds, scored=scored)
    assert alone[50].item() == every[50].item()
