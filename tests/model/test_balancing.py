"""Quantile balancing: the definition, its histogram, and a model whose load evens out."""

import itertools

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from hypothesis import given, settings, strategies as st

from model import checkpoint
from model.balancing import (
    MarginHistogram,
    QuantileBalancer,
    exact_correction,
    margins,
)
from model.expert_load import ExpertLoad
from model.hybrid import build_model
from model.mixer import PackedMixer
from model.presets import get_preset


def biased_scores(seed, num_tokens=512, num_experts=16, spread=1.5):
    """Scores of a router that likes some experts far better than others."""
    generator = torch.Generator().manual_seed(seed)
    taste = spread * torch.randn(num_experts, generator=generator)
    return torch.sigmoid(torch.randn(num_tokens, num_experts, generator=generator) + taste)


def choose(scores, correction, num_chosen):
    return (scores + correction).topk(num_chosen, dim=1).indices


def counts_of(scores, correction, num_chosen):
    chosen = choose(scores, correction, num_chosen)
    return chosen.flatten().bincount(minlength=scores.shape[1])


def max_violation(scores, correction, num_chosen):
    chosen = choose(scores, correction, num_chosen)
    return ExpertLoad.of(chosen.unsqueeze(1), scores.shape[1]).max_violation()[0]


def histogram_correction(parts, correction, num_chosen):
    histogram = MarginHistogram(correction.unsqueeze(0))
    for scores in parts:
        histogram.add(0, margins(scores, correction, num_chosen))
    return histogram.corrections(num_chosen)[0], histogram


def dual(scores, correction, num_chosen):
    """The dual of the balanced assignment at its best thresholds, in float64."""
    num_tokens, num_experts = scores.shape
    lifted = scores + correction
    threshold = lifted.topk(num_chosen + 1, dim=1).values[:, -1:]
    share = num_tokens * num_chosen / num_experts
    over = (lifted - threshold).clamp(min=0).sum()
    return float(over + num_chosen * threshold.sum() - share * correction.sum())


def test_an_expert_is_chosen_where_its_correction_exceeds_the_margin():
    scores = biased_scores(0).double()
    correction = 0.3 * torch.randn(16, dtype=torch.float64)
    chosen = torch.zeros_like(scores, dtype=torch.bool)
    chosen.scatter_(1, choose(scores, correction, 3), True)
    above = correction - margins(scores, correction, 3) > 1e-12
    assert torch.equal(above, chosen)


def test_at_unchanged_thresholds_a_fair_share_of_the_tokens_takes_each_expert():
    scores = biased_scores(1, num_tokens=500).double()
    before = 0.2 * torch.randn(16, dtype=torch.float64)
    margin = margins(scores, before, 3)
    after = exact_correction(margin, 3)
    lifted = after + (margin.kthvalue(94, dim=0).values - after).mean()  # the mean put back
    # 94 = ceil(500 * 3 / 16). Margins of first rejected experts pile up at the old correction: an
    # expert whose quantile lies there has more than its share at it, and less below it.
    assert ((margin < lifted - 1e-9).sum(dim=0) < 94).all()
    assert ((margin < lifted + 1e-9).sum(dim=0) >= 94).all()
    busy = counts_of(scores, before, 3) > 94
    assert (margin < lifted + 1e-9).sum(dim=0)[busy].tolist() == [94] * int(busy.sum())


def test_moving_one_correction_alone_brings_a_busy_expert_to_its_share_by_brute_force():
    scores = biased_scores(2, num_tokens=640).double()
    before = torch.zeros(16, dtype=torch.float64)
    quantiles = margins(scores, before, 2).kthvalue(80, dim=0).values
    busy = counts_of(scores, before, 2) > 80
    assert 0 < int(busy.sum()) < 16
    for expert in range(16):
        alone = before.clone()
        alone[expert] = quantiles[expert] + 1e-12
        count = int(counts_of(scores, alone, 2)[expert])
        if busy[expert]:
            assert count == 80
        else:
            assert counts_of(scores, before, 2)[expert] <= count <= 80


def test_an_update_never_raises_the_dual_of_the_assignment():
    scores = biased_scores(3).double()
    correction = torch.zeros(16, dtype=torch.float64)
    values = []
    for _ in range(8):
        values.append(dual(scores, correction, 3))
        correction = exact_correction(margins(scores, correction, 3), 3)
    assert values[0] - values[1] > 1.0
    assert all(later <= earlier + 1e-9 for earlier, later in itertools.pairwise(values))


def violations(update, num_updates):
    """Of 64 experts, 8 per token, over the updates."""
    scores = biased_scores(0, num_tokens=8192, num_experts=64, spread=1.0)
    correction = torch.zeros(64)
    found = [max_violation(scores, correction, 8)]
    for _ in range(num_updates):
        correction = update(scores, correction)
        found.append(max_violation(scores, correction, 8))
    return found


def test_a_strongly_biased_router_is_balanced_within_a_dozen_updates():
    found = violations(lambda s, b: exact_correction(margins(s, b, 8), 8), 11)
    assert found[0] > 3.5
    assert found[1] < 0.2
    assert found[2] < 0.1
    assert found[3] < 0.06
    assert found[11] < 0.015


def test_the_histogram_balances_as_far_as_its_bins_resolve():
    found = violations(lambda s, b: histogram_correction([s], b, 8)[0], 5)
    assert found[1] < 0.2
    assert found[2] < 0.1
    assert found[5] < 0.06


def test_the_correction_has_mean_zero():
    correction = exact_correction(margins(biased_scores(4), torch.zeros(16), 3), 3)
    assert abs(float(correction.mean())) < 1e-6
    assert float(correction.abs().max()) > 0.1


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 1000),
    num_tokens=st.integers(1, 300),
    num_experts=st.integers(2, 24),
    spread=st.floats(0, 4),
    data=st.data(),
)
def test_the_histogram_is_within_a_bin_of_the_exact_quantile(
    seed, num_tokens, num_experts, spread, data
):
    num_chosen = data.draw(st.integers(1, num_experts - 1))
    scores = biased_scores(seed, num_tokens, num_experts, spread)
    before = torch.randn(num_experts, generator=torch.Generator().manual_seed(seed))
    exact = exact_correction(margins(scores, before, num_chosen), num_chosen)
    found, histogram = histogram_correction([scores], before, num_chosen)
    # Both are up to their own mean, which is off by a bin at most as well.
    assert float((found - exact).abs().max()) <= 2.0 * float(histogram.bin_width[0]) + 1e-6


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 1000), sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6))
def test_micro_batches_add_up_to_the_step(seed, sizes):
    scores = biased_scores(seed, num_tokens=sum(sizes) + 1)
    whole, _ = histogram_correction([scores], torch.zeros(16), 3)
    sizes = [*sizes, 1]
    parts, _ = histogram_correction(scores.split(sizes), torch.zeros(16), 3)
    assert torch.equal(whole, parts)


def half_of_the_step(rank, folder):
    """One of two ranks: counts its half of the tokens, writes what it gets."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    half = biased_scores(5).chunk(2)[rank]
    histogram = MarginHistogram(torch.zeros(1, 16))
    histogram.add(0, margins(half, torch.zeros(16), 3))
    histogram.reduce()
    torch.save(histogram.corrections(3)[0], f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_equal_one(tmp_path):
    multiprocessing.spawn(half_of_the_step, args=(str(tmp_path),), nprocs=2)
    whole, _ = histogram_correction([biased_scores(5)], torch.zeros(16), 3)
    for rank in range(2):
        assert torch.equal(torch.load(tmp_path / f"{rank}.pt"), whole)


@pytest.fixture
def model():
    """A tiny model whose first experts are far too popular."""
    model = build_model(get_preset("tiny", 300), seed=0)
    for layer in routers(model):
        layer.correction[:2] = 0.5
    return model


def routers(model):
    return [block.block_sparse_moe.gate for block in model.model.layers if block.has_experts]


def load_of(model, token_ids):
    with torch.no_grad():
        mixer = PackedMixer(torch.tensor([0, len(token_ids)]))
        expert_ids = model.model.run(token_ids, mixer).expert_ids
    return ExpertLoad.of(expert_ids, model.config.shape.num_experts)


def test_the_load_of_a_model_evens_out(model):
    token_ids = torch.randint(0, 300, (512,), generator=torch.Generator().manual_seed(0))
    before = load_of(model, token_ids).max_violation()
    balancer = QuantileBalancer(model)
    for _ in range(5):
        model(token_ids[None])
        balancer.update()
    after = load_of(model, token_ids).max_violation()
    assert min(before) > 1.0
    assert max(after) < 0.25


def test_corrections_stay_until_the_step_ends_and_without_tokens(model):
    corrections = [router.correction.clone() for router in routers(model)]
    balancer = QuantileBalancer(model)
    balancer.update()
    model(torch.arange(200)[None])
    for router, correction in zip(routers(model), corrections, strict=True):
        assert torch.equal(router.correction, correction)
    balancer.update()
    for router, correction in zip(routers(model), corrections, strict=True):
        assert not torch.equal(router.correction, correction)


def test_an_evaluation_is_not_counted(model):
    balancer = QuantileBalancer(model)
    before = routers(model)[0].correction.clone()
    with torch.no_grad():
        model(torch.arange(200)[None])
    balancer.update()
    assert torch.equal(routers(model)[0].correction, before)


def test_no_optimizer_sees_the_correction_and_a_checkpoint_keeps_it_in_float32(model, tmp_path):
    assert not any(name.endswith("correction_bias") for name, _ in model.named_parameters())
    correction = torch.linspace(-0.123456789, 0.123456789, 8)
    routers(model)[1].correction.copy_(correction)
    checkpoint.save(model, tmp_path)
    assert torch.equal(routers(checkpoint.load(tmp_path))[1].correction, correction)


def test_a_router_that_takes_every_expert_is_refused(model):
    routers(model)[0].num_chosen = 8
    with pytest.raises(ValueError, match="each token passes all 8 experts"):
        QuantileBalancer(model)
