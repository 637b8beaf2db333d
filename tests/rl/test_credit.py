"""Credit: hand-computed advantages, and the gradient's expectation by enumeration."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from envs.messages import Message, Role
from rl.config import CreditSection, LossSection
from rl.credit import CreditAssigner, Critique, assign_credit, rloo
from rl.mix_weights import Errors
from rl.presets import resolve
from rl.turn_rows import TurnValues
from rollout.trajectory import Turn

RLOO = CreditSection()


def advantages_of(samples):
    return [float(sample.advantages[sample.segment.loss_mask][0]) for sample in samples]


def test_rloo_equals_the_hand_computed_advantages(build_group):
    samples = assign_credit([build_group([1.0, 0.0, 0.0, 1.0])], RLOO)
    # 1 - (0 + 0 + 1) / 3 and 0 - (1 + 0 + 1) / 3
    assert advantages_of(samples) == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])


def test_an_invalid_member_is_in_no_baseline_and_in_no_batch(build_group):
    samples = assign_credit([build_group([1.0, None, 0.0, 0.5])], RLOO)
    assert advantages_of(samples) == pytest.approx([0.75, -0.75, 0.0])


@pytest.mark.parametrize("rewards", [[1.0, None], [None, None]])
def test_a_group_with_fewer_than_two_valid_members_gives_no_sample(build_group, rewards):
    assert assign_credit([build_group(rewards)], RLOO) == []


def test_a_group_whose_rewards_are_equal_is_kept_with_advantage_zero(build_group):
    samples = assign_credit([build_group([1.0, 1.0, 1.0]), build_group([1.0, 0.0])], RLOO)
    assert advantages_of(samples) == pytest.approx([0.0, 0.0, 0.0, 1.0, -1.0])


def test_advantages_are_zero_off_the_policy_tokens(build_group):
    for sample in assign_credit([build_group([1.0, 0.0])], RLOO):
        assert (sample.advantages[:2] == 0).all()
        assert (sample.advantages[2:] != 0).all()


def test_advantages_of_a_group_sum_to_zero_and_ignore_a_shift(build_group):
    plain = advantages_of(rloo([build_group([0.1, 0.4, 0.2])]))
    shifted = advantages_of(rloo([build_group([0.5, 0.8, 0.6])]))
    assert sum(plain) == pytest.approx(0.0, abs=1e-6)
    assert plain == pytest.approx(shifted, abs=1e-6)


def test_leave_one_out_keeps_the_expected_gradient(build_group):
    """Enumerate every group of three draws from a two-armed softmax bandit."""
    probability = np.array([0.3, 0.7])
    rewards = np.array([1.0, 0.2])
    score = np.eye(2) - probability  # d log pi(action) / d logits, one row per action
    exact = sum(probability[a] * rewards[a] * score[a] for a in range(2))

    expected = np.zeros(2)
    for actions in itertools.product(range(2), repeat=3):
        samples = rloo([build_group([float(rewards[a]) for a in actions])])
        estimate = np.mean(
            [a * score[action] for a, action in zip(advantages_of(samples), actions, strict=True)],
            axis=0,
        )
        expected += np.prod(probability[list(actions)]) * estimate
    assert expected == pytest.approx(exact, abs=1e-6)


def test_members_that_go_missing_at_random_leave_the_expected_gradient_unbiased(build_group):
    """Enumerate all groups of three draws, and all subsets of at least two that stay."""
    probability, rewards = np.array([0.3, 0.7]), np.array([1.0, 0.2])
    score = np.eye(2) - probability
    exact = sum(probability[a] * rewards[a] * score[a] for a in range(2))
    subsets = [kept for kept in itertools.product([True, False], repeat=3) if sum(kept) >= 2]
    for kept in subsets:
        expected = np.zeros(2)
        for actions in itertools.product(range(2), repeat=3):
            given = [
                float(rewards[a]) if stays else None for a, stays in zip(actions, kept, strict=True)
            ]
            stayed = [action for action, stays in zip(actions, kept, strict=True) if stays]
            advantages = advantages_of(rloo([build_group(given)]))
            terms = [a * score[action] for a, action in zip(advantages, stayed, strict=True)]
            expected += np.prod(probability[list(actions)]) * np.mean(terms, axis=0)
        assert expected == pytest.approx(exact, abs=1e-6)


def test_a_rule_of_ones_own_is_found_by_its_dotted_path(build_group):
    section = CreditSection(type="rl.credit:rloo")
    assert len(assign_credit([build_group([1.0, 0.0])], section)) == 2


@pytest.mark.parametrize("name", ["roo", "rl.credit:nothing", "no.such.module:rule"])
def test_an_unknown_rule_is_one_clear_line(build_group, name):
    with pytest.raises(ValueError, match=r"credit\.type = ") as error:
        assign_credit([build_group([1.0, 0.0])], CreditSection(type=name))
    assert "\n" not in str(error.value)


def old_rloo(groups):
    """The rule written out as a loop over siblings: its bits are those of the grid."""
    for group in groups:
        valid = [(m, m.reward) for m in group.trajectories if m.reward is not None]
        if len(valid) < 2:
            continue
        total = sum(reward for _, reward in valid)
        for member, reward in valid:
            advantage = reward - (total - reward) / (len(valid) - 1)
            for segment in member.segments:
                yield segment.loss_mask * np.float32(advantage)


@given(
    rewards=st.lists(
        st.lists(st.one_of(st.none(), st.floats(0.0, 1.0)), min_size=1, max_size=6),
        min_size=1,
        max_size=4,
    )
)
def test_the_default_has_the_bits_of_the_loop_over_siblings(build_group, rewards):
    groups = [build_group(each, name=f"task{i}") for i, each in enumerate(rewards)]
    got = [sample.advantages for sample in assign_credit(groups, RLOO)]
    expected = list(old_rloo(groups))
    assert len(got) == len(expected)
    assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))


def critique_of(groups, value, explained):
    members = [member for group in groups for member in group.trajectories]
    values = {m.id: TurnValues(before=np.array([value]), after=value) for m in members}
    # At last turns it explains half of the variance, whatever it does before.
    errors = Errors(missed=1.0 - explained, spread=1.0, missed_last=0.5, spread_last=1.0)
    return Critique(values=values, errors=errors)


def assigner(name, **pieces):
    section = CreditSection(type=name, **pieces)
    return CreditAssigner(section, resolve(section, LossSection()))


def test_group_normalisation_divides_by_the_spread_of_the_siblings(build_group):
    got = advantages_of(assign_credit([build_group([1.0, 0.0])], CreditSection(type="grpo")))
    assert got == pytest.approx([0.5 / np.sqrt(0.5), -0.5 / np.sqrt(0.5)], rel=1e-5)


def test_a_critic_is_the_baseline_of_a_trajectory_alone(build_group):
    groups = [build_group([1.0], name="a"), build_group([0.0], name="b")]
    credit = assigner("sao", group_size=1).assign(groups, critique_of(groups, 0.25, 0.4))
    assert advantages_of(credit.samples) == pytest.approx([0.75, -0.25])
    assert credit.statistics.mean == pytest.approx(0.25)


def test_a_rule_without_its_critic_is_an_error(build_group):
    with pytest.raises(ValueError, match="needs a critic"):
        assign_credit([build_group([1.0, 0.0])], CreditSection(type="tb_gae"))


def test_the_mix_does_without_a_critic_that_explains_nothing(build_group):
    groups = [build_group([1.0, 0.0])]
    mix = assigner("tb_gae_mix")
    fallen_back = mix.assign(groups, critique_of(groups, 0.9, -0.1))
    assert [term.weight for term in fallen_back.terms] == [0.0, 0.0, 0.0, 1.0]
    assert advantages_of(fallen_back.samples) == pytest.approx([1.0, -1.0])
    trusted = assigner("tb_gae_mix").assign(groups, critique_of(groups, 0.9, 0.125))
    assert [term.weight for term in trusted.terms] == [0.25, 0.25, 0.5, 0.0]
    root = np.sqrt((0.1**2 + 0.9**2) / 2)
    assert advantages_of(trusted.samples) == pytest.approx([0.1 / root, -0.9 / root])


def test_a_running_scale_remembers_the_steps_before(build_group):
    mix = assigner("tb_gae_mix")
    loud, quiet = build_group([1.0, 0.0]), build_group([0.1, 0.0])
    first = advantages_of(mix.assign([loud]).samples)
    second = advantages_of(mix.assign([quiet]).samples)
    assert first == pytest.approx([1.0, -1.0])
    assert 0.1 < second[0] < 1.0


def test_a_turn_that_was_aborted_is_not_the_policys_doing(build_group, build_segment):
    segment = build_segment(token_ids=range(8), prompt=2, versions=(0, 1))
    group = build_group([1.0, 0.0], segments=[segment, segment])
    message = Message(role=Role.POLICY, text="")
    turns = tuple(
        Turn(index=i, action=message, span=span, segment=0, finish=finish, seconds=0.0)
        for i, (span, finish) in enumerate(zip(segment.spans[1:], ("stop", "abort"), strict=True))
    )
    members = tuple(dataclasses.replace(m, turns=turns) for m in group.trajectories)
    samples = assign_credit([dataclasses.replace(group, trajectories=members)], RLOO)
    assert samples[0].advantages.tolist() == [0, 0, 1, 1, 1, 0, 0, 0]


def test_rows_of_a_trajectory_do_not_count_twice_in_its_group(build_group, build_segment):
    """The second sibling has two segments."""
    group = build_group([1.0, 0.0, 0.5])
    two = (build_segment(), build_segment())
    members = list(group.trajectories)
    members[1] = dataclasses.replace(members[1], segments=two)
    samples = assign_credit([dataclasses.replace(group, trajectories=tuple(members))], RLOO)
    assert advantages_of(samples) == pytest.approx([0.75, -0.75, -0.75, 0.0])
    assert [sample.trajectory_id for sample in samples] == [
        *("task#0@0", "task#1@0", "task#1@0", "task#2@0")
    ]


@pytest.mark.parametrize("name", ["grpo", "dapo", "dr_grpo", "rloo", "kimi_k2_5", "gigpo", "gagpo"])
@pytest.mark.parametrize("rewards", [[None, None], [1.0, None], [0.5, 0.5], [0.0, 0.0, 0.0]])
def test_groups_that_say_nothing_move_nothing(build_group, name, rewards):
    samples = assign_credit([build_group(rewards)], CreditSection(type=name))
    assert all(not sample.advantages.any() for sample in samples)
