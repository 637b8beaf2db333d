"""The critic: where it looks, that it learns, that it judges first, and what it leaves alone."""

import dataclasses

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from model.config import ModelConfig
from model.hybrid import build_model
from rl.config import CreditSection, CriticSection
from rl.critic import Critic, read, split_readings
from rollout.trajectory import Segment, Source, TokenSpan

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
GOOD, BAD, PROMPT, REPLY = 5, 6, 3, 9


def play(first):
    """Two turns of one token; the first decides."""
    token_ids = [PROMPT, PROMPT, first, REPLY, 7]
    sources = [Source.PROMPT, Source.POLICY, Source.TOOL, Source.POLICY]
    bounds = [(0, 2, 0), (2, 3, 0), (3, 4, 0), (4, 5, 1)]
    spans = [
        TokenSpan(start=a, stop=b, source=source, turn=turn, policy_version=0)
        for source, (a, b, turn) in zip(sources, bounds, strict=True)
    ]
    logprobs = np.array([0, 0, -1, 0, -1], dtype=np.float32)
    return Segment(
        token_ids=np.array(token_ids, dtype=np.int32),
        spans=tuple(spans),
        behavior_logprobs=logprobs,
    )


@pytest.fixture
def policy():
    return build_model(SHAPE, seed=0)


@pytest.fixture
def groups(build_group):
    """Four siblings; those whose first token is GOOD succeed."""
    firsts = [GOOD, BAD, BAD, GOOD]
    rewards = [float(first == GOOD) for first in firsts]
    return [build_group(rewards, segments=[play(first) for first in firsts])]


def make_critic(policy, trunk="shared", **fields):
    steps = 6 if trunk == "copy" else 20  # a copied trunk moves too, and each step runs it
    section = CriticSection(learning_rate=1e-2, steps_per_update=steps, trunk=trunk, **fields)
    return Critic(section, CreditSection(type="tb_gae"), policy, max_batch_tokens=12)


def test_it_reads_before_each_turn_and_at_the_end(groups):
    [reading] = read(groups[0].trajectories[0])
    assert reading.positions == (1, 3, 4)


def test_readings_are_split_into_forwards_of_bounded_size(groups):
    readings = [reading for member in groups[0].trajectories for reading in read(member)]
    assert [len(piece) for piece in split_readings(readings, 12)] == [2, 2]
    assert [len(piece) for piece in split_readings(readings, 1)] == [1, 1, 1, 1]


@pytest.mark.parametrize("trunk", ["shared", "frozen", "copy"])
@pytest.mark.parametrize("loss", ["bce", "mse"])
def test_it_learns_what_decides_and_keeps_the_first_turn_in_the_middle(policy, groups, trunk, loss):
    critic = make_critic(policy, trunk=trunk, loss=loss)
    for _ in range(8):
        critique, statistics = critic.study(groups, policy)
    good, bad = (critique.values[f"task#{sibling}@0"].before for sibling in (0, 1))
    assert good[0] == pytest.approx(0.5, abs=0.15)
    assert good[0] == pytest.approx(bad[0], abs=1e-5)
    assert good[1] > 0.9
    assert bad[1] < 0.1
    # The second turn's outcomes are foreseen, the first's cannot be.
    assert statistics.explained_variance == pytest.approx(0.5, abs=0.1)


def test_it_judges_before_it_learns(policy, groups):
    critic = make_critic(policy)
    critique, statistics = critic.study(groups, policy)
    values = [values.before for values in critique.values.values()]
    assert np.concatenate(values) == pytest.approx(0.5)
    assert critique.errors.explained_variance == pytest.approx(0.0)
    assert statistics.explained_variance == pytest.approx(0.0)
    again, _ = critic.study(groups, policy)
    assert np.ptp(np.concatenate([values.before for values in again.values.values()])) > 0.1


def test_the_explained_variance_that_decides_moves_slowly(policy, groups):
    critic = make_critic(policy)
    first, _ = critic.study(groups, policy)
    second, statistics = critic.study(groups, policy)
    # Both steps have the same outcomes; the first counts 0.8 of the second.
    expected = (0.8 * first.errors.explained_variance + statistics.explained_variance) / 1.8
    assert second.errors.explained_variance == pytest.approx(expected)


def test_a_frozen_trunk_stays_what_it_was(policy, groups, tmp_path):
    critic = make_critic(policy, trunk="frozen")
    critic.save(tmp_path)
    before = load_file(tmp_path / "critic.safetensors")
    critic.study(groups, policy)
    critic.save(tmp_path)
    after = load_file(tmp_path / "critic.safetensors")
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert all(name.startswith("head.") for name in moved)


@pytest.mark.parametrize("trunk", ["shared", "frozen", "copy"])
def test_the_policy_stays_as_it_is(policy, groups, trunk):
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    make_critic(policy, trunk=trunk).study(groups, policy)
    assert all(torch.equal(before[name], value) for name, value in policy.state_dict().items())
    assert all(parameter.grad is None for parameter in policy.parameters())


@pytest.mark.parametrize("trunk", ["shared", "frozen", "copy"])
def test_only_a_shared_trunk_follows_the_policy(policy, groups, trunk):
    values = []
    for second in (policy, build_model(SHAPE, seed=1)):
        critic = make_critic(policy, trunk=trunk)
        critic.study(groups, policy)
        critique, _ = critic.study(groups, second)
        values.append(critique.values["task#0@0"].before)
    assert (values[0] == pytest.approx(values[1], abs=1e-6)) == (trunk != "shared")
    assert values[0][1] > 0.5


def test_trajectories_without_a_score_are_not_judged(policy, build_group):
    segments = [play(GOOD), play(BAD), play(BAD)]
    critique, _ = make_critic(policy).study(
        [build_group([1.0, None, 0.0], segments=segments)], policy
    )
    assert sorted(critique.values) == ["task#0@0", "task#2@0"]
    nothing, statistics = make_critic(policy).study([build_group([None, None])], policy)
    assert (nothing.values, nothing.errors.explained_variance, statistics) == ({}, None, None)


def test_equal_outcomes_say_nothing_of_the_critic_but_are_learned(policy, build_group):
    critic = make_critic(policy)
    critique, statistics = critic.study(
        [build_group([1.0, 1.0], segments=[play(GOOD)] * 2)], policy
    )
    assert (critique.errors.explained_variance, statistics.explained_variance) == (None, None)
    assert statistics.loss < 0.69


@pytest.mark.parametrize("trunk", ["shared", "frozen", "copy"])
def test_a_saved_critic_judges_as_it_did(policy, groups, trunk, tmp_path):
    critic = make_critic(policy, trunk=trunk)
    critic.study(groups, policy)
    critic.save(tmp_path)
    restored = make_critic(policy, trunk=trunk)
    restored.restore(tmp_path)
    assert restored.is_restored
    expected, _ = critic.study(groups, policy)
    got, _ = restored.study(groups, policy)
    for name, values in expected.values.items():
        assert got.values[name].before == pytest.approx(values.before, abs=1e-6)


def test_a_critic_of_another_trunk_is_refused_in_one_line(policy, groups, tmp_path):
    make_critic(policy, trunk="copy").save(tmp_path)
    with pytest.raises(ValueError, match=r"another critic than critic\.trunk = shared") as error:
        make_critic(policy).restore(tmp_path)
    assert "\n" not in str(error.value)
    fresh = make_critic(policy)
    fresh.restore(tmp_path / "nowhere")
    assert not fresh.is_restored


def test_a_value_does_not_depend_on_what_comes_after_the_turn_begins(policy, groups):
    critic = make_critic(policy)
    critic.study(groups, policy)
    member = groups[0].trajectories[0]
    segment = member.segments[0]
    other_ids = segment.token_ids.copy()
    other_ids[4] = 11
    changed = dataclasses.replace(segment, token_ids=other_ids)
    trajectory = dataclasses.replace(member, segments=(changed,))
    group = dataclasses.replace(groups[0], trajectories=(trajectory,))
    one = dataclasses.replace(groups[0], trajectories=(member,))
    values = []
    for each in (one, group):
        fresh = make_critic(policy)
        fresh.study(groups, policy)
        values.append(fresh.study([each], policy)[0].values["task#0@0"].before)
    assert values[0] == pytest.approx(values[1], abs=1e-6)
