"""The learner, with a real small model and no engine: updates, versions, partitions, a bandit."""

import dataclasses

import numpy as np
import pytest
import torch

from model.config import ModelConfig
from model.hybrid import build_model
from model.logprobs import sequence_logprobs
from rl.aggregation import AGGREGATIONS
from rl.agreement import check_trajectories, choose_prefix
from rl.batch import Sample, lay_end_to_end
from rl.config import CreditSection, LearnerSection
from rl.credit import assign_credit
from rl.learner import Learner, NonFiniteError
from rl.packing import pack
from rl.presets import LossSettings
from rollout.trajectory import NO_EXPERT, Segment

SHAPE = ModelConfig(
    vocab_size=16,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=1,
    full_attn_layers=(2,),
    attn_res_block_size=2,
    kda_head_dim=16,
    q_lora_rank=8,
    kv_lora_rank=32,
    qk_nope_head_dim=8,
    v_head_dim=8,
    intermediate_size=16,
    num_experts=4,
    num_experts_per_token=2,
    routed_expert_hidden_size=8,
    moe_intermediate_size=8,
)
PROMPT = (3, 4)


def make_learner(learning_rate=1e-2, num_kept_versions=3, loss=LossSettings(), **section):  # noqa: B008  frozen
    return Learner(
        build_model(SHAPE, seed=0),
        LearnerSection(learning_rate=learning_rate, **section),
        loss,
        temperature=1.0,
        num_kept_versions=num_kept_versions,
    )


def with_behavior(learner, segments, version=0):
    """The segments as if an engine with these weights had sampled them."""
    scores = learner.logprobs(segments, version, temperature=1.0)
    return [
        Segment(
            token_ids=segment.token_ids,
            spans=segment.spans,
            behavior_logprobs=np.where(segment.loss_mask, score, 0).astype(np.float32),
            expert_ids=segment.expert_ids,
        )
        for segment, score in zip(segments, scores, strict=True)
    ]


def make_samples(learner, build_segment, build_group):
    lengths = (9, 3, 6, 4)
    tokens = [[*PROMPT, *(np.arange(length) * 7 % 16)] for length in lengths]
    segments = with_behavior(learner, [build_segment(ids) for ids in tokens])
    return assign_credit([build_group([1.0, 0.0, 0.5, 0.0], segments=segments)], CreditSection())


def test_a_bandit_learns_the_arm_that_pays(build_segment, build_group):
    """Sample one token after a prompt, reward the second of three arms, thirty updates."""
    learner = make_learner(learning_rate=3e-3)
    arms, paying = (5, 6, 7), 6
    random = np.random.default_rng(0)

    def arm_probabilities():
        segments = [build_segment([*PROMPT, arm]) for arm in arms]
        scores = learner.logprobs(segments, learner.version, temperature=1.0)
        return np.exp([score[-1] for score in scores])

    before = arm_probabilities()
    for _ in range(30):
        odds = arm_probabilities()
        drawn = random.choice(arms, size=8, p=odds / odds.sum())
        segments = [
            build_segment([*PROMPT, int(arm)], versions=(learner.version,)) for arm in drawn
        ]
        segments = with_behavior(learner, segments, learner.version)
        rewards = [float(arm == paying) for arm in drawn]
        samples = assign_credit([build_group(rewards, segments=segments)], CreditSection())
        learner.step(pack(samples, 64))
    after = arm_probabilities()
    assert after[1] > 3 * before[1]
    assert after[1] > 2 * max(after[0], after[2])


@pytest.mark.parametrize("max_batch_tokens", [11, 20, 1000])
def test_an_update_does_not_depend_on_the_partition(build_segment, build_group, max_batch_tokens):
    reference, learner = make_learner(), make_learner()
    samples = make_samples(learner, build_segment, build_group)
    whole = reference.step(pack(samples, 1000))
    batch = pack(samples, max_batch_tokens)
    update = learner.step(batch)
    assert len(batch.micro_batches) == {11: 3, 20: 2, 1000: 1}[max_batch_tokens]
    assert update.statistics.loss == pytest.approx(whole.statistics.loss, abs=1e-6)
    assert update.grad_norm == pytest.approx(whole.grad_norm, rel=1e-4)


REGIONS = [
    LossSettings(trust_region="gspo", ratio_low=0.95, ratio_high=1.05),
    LossSettings(trust_region="ppo_clip", ratio_low=0.9, ratio_high=1.1, kl_weight=0.1),
    LossSettings(trust_region="dis", ratio_low=0.9, ratio_high=1.1),
    LossSettings(trust_region="dppo_tv", tv_bound=0.004),
]


def off_policy_samples(learner, build_segment, build_group, *, is_split):
    """Four siblings; the sampler's log-probs are off by noise. Split: two segments each."""
    random = np.random.default_rng(0)
    whole = [build_segment([*PROMPT, *random.integers(0, 16, 6)]) for _ in range(4)]
    # The second half is read behind the same prompt alone, split or not: the same log-probs.
    halves = [
        [build_segment([*PROMPT, *segment.token_ids[2 + 3 * i : 5 + 3 * i]]) for i in (0, 1)]
        for segment in whole
    ]
    noise = random.normal(scale=0.1, size=(4, 2, 3))
    samples = []
    for sibling, (pair, advantage) in enumerate(zip(halves, (1.0, -1.0, 0.5, -0.5), strict=True)):
        for half, segment in enumerate(with_behavior(learner, pair)):
            shifted = segment.behavior_logprobs.copy()
            shifted[2:] += noise[sibling, half]
            samples.append(
                Sample(
                    segment=dataclasses.replace(segment, behavior_logprobs=np.minimum(shifted, 0)),
                    advantages=segment.loss_mask * np.float32(advantage),
                    trajectory_id=f"t{sibling}" if is_split else None,
                    group_id=f"g{sibling // 2}" if is_split else None,
                )
            )
    return samples


@pytest.mark.parametrize("loss", REGIONS, ids=lambda loss: loss.trust_region)
@pytest.mark.parametrize("name", AGGREGATIONS)
def test_an_update_is_the_same_whatever_the_partition_region_and_aggregation(
    build_segment, build_group, loss, name
):
    """Also where the segments of a trajectory lie in different micro-batches."""
    updates = []
    for max_batch_tokens in (5, 12, 1000):
        learner = make_learner(loss=loss)
        samples = off_policy_samples(learner, build_segment, build_group, is_split=True)
        batch = pack(samples, max_batch_tokens, AGGREGATIONS[name], 8)
        updates.append(learner.step(batch))
    assert len({update.statistics.num_stopped for update in updates}) == 1
    assert 0 < updates[0].statistics.num_stopped < 24
    for update in updates[1:]:
        assert update.grad_norm == pytest.approx(updates[0].grad_norm, rel=1e-4)
        assert update.statistics.loss == pytest.approx(updates[0].statistics.loss, abs=1e-6)


def test_a_trajectory_is_all_of_its_segments(build_segment, build_group):
    """Four trajectories of two segments, or eight of one: a sum per trajectory is halved."""
    norms = []
    for is_split in (True, False):
        learner = make_learner()
        samples = off_policy_samples(learner, build_segment, build_group, is_split=is_split)
        batch = pack(samples, 1000, AGGREGATIONS["seq_mean_token_sum"])
        norms.append(learner.step(batch).grad_norm)
    assert norms[0] == pytest.approx(2 * norms[1], rel=1e-4)


def test_a_trajectory_whose_logprobs_are_not_finite_stops_the_step_by_name(
    build_segment, build_group
):
    learner = make_learner()
    samples = make_samples(learner, build_segment, build_group)
    embedding = learner._model.model.embed_tokens.weight
    with torch.no_grad():
        embedding[14] = float("nan")  # token 14 = 2 * 7 stands in all but the second trajectory
    weights = learner.weights()
    with pytest.raises(NonFiniteError, match=r"'task#0@0' has log-probs") as error:
        learner.step(pack(samples, 12))
    assert error.value.trajectory_id == "task#0@0"
    assert learner.version == 0
    pairs = zip(weights.values(), learner.weights().values(), strict=True)
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)


def test_on_policy_statistics_are_the_ideal_ones(build_segment, build_group):
    learner = make_learner()
    update = learner.step(pack(make_samples(learner, build_segment, build_group), 64))
    assert update.version == learner.version == 1
    assert update.statistics.effective_sample_size == pytest.approx(1.0, abs=1e-6)
    assert update.statistics.log_ratio_abs_mean < 1e-5
    assert 0 < update.statistics.entropy < np.log(16)


def test_old_versions_score_as_they_did_and_only_so_many_are_kept(build_segment, build_group):
    learner = make_learner(num_kept_versions=2)
    samples = make_samples(learner, build_segment, build_group)
    segment = samples[0].segment
    first = learner.logprobs([segment], 0, temperature=1.0)[0]
    learner.step(pack(samples, 64))
    assert (learner.logprobs([segment], 0, 1.0)[0] == first).all()
    assert (learner.logprobs([segment], 1, 1.0)[0] != first).any()
    learner.step(pack(samples, 64))
    with pytest.raises(LookupError, match=r"version 0 is not kept: there are \[1, 2\]"):
        learner.logprobs([segment], 0, temperature=1.0)


def test_scoring_does_not_touch_what_trains(build_segment, build_group):
    learner, undisturbed = make_learner(), make_learner()
    samples = make_samples(learner, build_segment, build_group)
    for each in (learner, undisturbed):
        each.step(pack(samples, 64))
    learner.logprobs([samples[0].segment], 0, temperature=1.0)
    for each in (learner, undisturbed):
        each.step(pack(samples, 64))
    pairs = zip(learner.weights().values(), undisturbed.weights().values(), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


def test_temperature_divides_the_logits(build_segment):
    learner = make_learner()
    segment = build_segment([*PROMPT, 5, 6])
    token_ids, cu_seqlens, _ = lay_end_to_end([segment])
    direct, _ = sequence_logprobs(build_model(SHAPE, seed=0), token_ids, cu_seqlens, 0.5)
    ours = learner.logprobs([segment], 0, temperature=0.5)[0]
    assert ours == pytest.approx(direct.detach().numpy(), abs=1e-6)
    assert ours != pytest.approx(learner.logprobs([segment], 0, temperature=1.0)[0], abs=1e-6)


def test_captured_experts_are_replayed(build_segment):
    learner = make_learner()
    plain = build_segment([*PROMPT, 5, 6])
    scores = [
        learner.logprobs([build_segment([*PROMPT, 5, 6], experts=expert)], 0, 1.0)[0]
        for expert in (NO_EXPERT, 0, 3)
    ]
    assert scores[0] == pytest.approx(learner.logprobs([plain], 0, 1.0)[0])
    assert scores[1] != pytest.approx(scores[2], abs=1e-7)


def test_agreement_is_measured_under_the_version_that_sampled(build_segment, build_group):
    """Two updates old, and still no gap: the learner scores under the old weights."""
    learner = make_learner()
    samples = make_samples(learner, build_segment, build_group)
    segments = with_behavior(learner, [build_segment([*PROMPT, 5, 6, 7])] * 2)
    group = build_group([1.0, 0.0], segments=segments)
    for _ in range(2):
        learner.step(pack(samples, 64))
    agreement = check_trajectories(learner, group.trajectories, max_trajectories=2)
    assert agreement.num_tokens == 6
    assert agreement.gap_max < 1e-6


def test_a_wrong_logprob_shows_as_a_gap(build_segment, build_group):
    learner = make_learner()
    segment = build_segment([*PROMPT, 5, 6], logprob=-0.5)
    group = build_group([1.0], segments=[segment])
    agreement = check_trajectories(learner, group.trajectories, max_trajectories=1)
    expected = np.abs(learner.logprobs([segment], 0, 1.0)[0][2:] + 0.5)
    assert agreement.gap_mean == pytest.approx(expected.mean(), rel=1e-5)
    assert agreement.gap_max == pytest.approx(expected.max(), rel=1e-5)


def test_tokens_after_a_change_of_version_are_counted_and_not_compared(build_segment, build_group):
    learner = make_learner()
    mixed = build_segment([*PROMPT, 5, 6, 7, 8], versions=(0, 1), logprob=-9.0)
    assert choose_prefix(mixed).token_ids.tolist() == [*PROMPT, 5, 6]
    right = with_behavior(learner, [choose_prefix(mixed)])[0].behavior_logprobs
    logprobs = np.concatenate([right, np.float32([-9.0, -9.0])])
    segment = Segment(token_ids=mixed.token_ids, spans=mixed.spans, behavior_logprobs=logprobs)
    group = build_group([1.0], segments=[segment])
    agreement = check_trajectories(learner, group.trajectories, max_trajectories=1)
    assert (agreement.num_tokens, agreement.num_mixed_tokens) == (2, 2)
    assert agreement.gap_max < 1e-5


def test_a_bounded_number_of_trajectories_is_checked(build_segment, build_group):
    learner = make_learner()
    segments = [build_segment([*PROMPT, 5])] * 10
    group = build_group([0.0] * 10, segments=segments)
    agreement = check_trajectories(learner, group.trajectories, max_trajectories=4)
    assert agreement.num_tokens == 4


def test_an_update_reports_the_load_of_the_experts_that_the_engine_chose(
    build_segment, build_group
):
    learner = make_learner()
    segments = with_behavior(
        learner, [build_segment([*PROMPT, 5], experts=expert) for expert in (0, 0, 0, 2)]
    )
    samples = assign_credit([build_group([1.0, 0.0, 0.0, 0.0], segments=segments)], CreditSection())
    load = learner.step(pack(samples, 64)).expert_load
    assert load.counts.tolist() == [[18, 0, 6, 0]]  # 4 segments, 3 tokens, 2 experts each
    assert load.max_violation() == [2.0]
    assert load.num_dead() == [2]


def test_without_recorded_experts_there_is_no_load(build_segment, build_group):
    learner = make_learner()
    samples = make_samples(learner, build_segment, build_group)
    assert learner.step(pack(samples, 64)).expert_load is None


@pytest.mark.parametrize("balance_experts", [False, True])
def test_corrections_stay_frozen_unless_asked_for_and_are_published_with_the_weights(
    build_segment, build_group, balance_experts
):
    learner = make_learner(balance_experts=balance_experts)
    samples = make_samples(learner, build_segment, build_group)
    learner.step(pack(samples, 64))
    name = "model.layers.1.block_sparse_moe.gate.e_score_correction_bias"
    assert bool(learner.weights()[name].any()) == balance_experts


def test_a_group_whose_rewards_are_equal_counts_in_the_denominator_and_pays_the_penalty(
    build_segment, build_group
):
    learner = make_learner(learning_rate=1e-9)
    tokens = [[*PROMPT, 5, 6], [*PROMPT, 7, 8]]
    segments = with_behavior(learner, [build_segment(ids) for ids in tokens])
    informative = build_group([1.0, 0.0], segments=segments)
    # As if an older policy had sampled them, each token 0.1 nats less likely than now.
    older = [
        dataclasses.replace(
            segment, behavior_logprobs=segment.behavior_logprobs - 0.1 * segment.loss_mask
        )
        for segment in segments
    ]
    equal = build_group([1.0, 1.0], segments=older)

    def update_on(*groups):
        return learner.step(pack(assign_credit(groups, CreditSection()), 64))

    alone, both, penalty = update_on(informative), update_on(informative, equal), update_on(equal)
    assert penalty.statistics.loss == pytest.approx(1e-3 * 0.1**2, rel=1e-3)
    assert penalty.grad_norm > 0.0
    assert both.statistics.num_tokens == 2 * alone.statistics.num_tokens
    expected = (alone.statistics.loss + penalty.statistics.loss) / 2
    assert both.statistics.loss == pytest.approx(expected, rel=1e-3)


def test_the_learner_weighs_tokens_as_the_aggregation_says(build_segment, build_group):
    """A mean per trajectory is a mean over tokens of advantages that carry its weights."""
    loss = LossSettings(log_ratio_penalty=0.0)
    by_trajectory, by_token = make_learner(loss=loss), make_learner(loss=loss)
    samples = make_samples(by_token, build_segment, build_group)
    lengths = np.array([int(sample.segment.loss_mask.sum()) for sample in samples])
    shares = lengths.sum() / (len(samples) * lengths)
    carried = [
        dataclasses.replace(sample, advantages=sample.advantages * np.float32(share))
        for sample, share in zip(samples, shares, strict=True)
    ]
    got = by_trajectory.step(pack(samples, 1000, AGGREGATIONS["seq_mean_token_mean"]))
    expected = by_token.step(pack(carried, 1000))
    assert got.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)
    assert got.grad_norm != pytest.approx(
        make_learner().step(pack(samples, 1000)).grad_norm, rel=0.05
    )
