"""Presets: what each resolves to, what can be set over it, and what does not go together."""

import pytest

from rl.config import CreditSection, LossSection
from rl.presets import PRESETS, TRUST_REGIONS, resolve
from rl.temporal import LengthAdaptive

NAMES = [
    *("grpo", "dr_grpo", "dapo", "rloo", "reinforce_pp", "gspo", "cispo", "kimi_k2_5"),
    *("prime_dppo", "ppo", "vapo", "gigpo", "gagpo", "sao", "tb_gae", "tb_gae_mix", "vine"),
]


def resolved(name, loss=None, **pieces):
    return resolve(CreditSection(type=name, **pieces), LossSection(**(loss or {})))


def test_the_names_of_the_field_are_all_there():
    assert set(PRESETS) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_resolves_to_itself_and_says_what_it_is(name):
    recipe = resolved(name)
    assert recipe == PRESETS[name]
    assert recipe.loss.trust_region in TRUST_REGIONS
    line = recipe.describe()
    assert recipe.loss.aggregation in line
    assert "\n" not in line


def test_the_default_is_leave_one_out_in_a_band():
    recipe = resolve(CreditSection(), LossSection())
    line = "outcome - rloo; dis(0.2, 4) + 0.001 log^2; token_mean"
    assert recipe.describe() == line


def test_only_rules_with_a_critic_need_one():
    assert [name for name in NAMES if PRESETS[name].rule.needs_critic] == [
        *("ppo", "vapo", "sao", "tb_gae", "tb_gae_mix", "vine")
    ]


def test_every_piece_can_be_set_over_a_preset():
    loss = {"type": "cispo", "ratio_high": 3.0, "aggregation": "prompt_mean", "kl_weight": 0.1}
    recipe = resolved("grpo", loss, baseline="rloo", scale="none")
    assert recipe.describe() == "outcome - rloo; cispo(0.8, 3) + 0.1 k3; prompt_mean"
    recipe = resolved("grpo", baseline="critic", temporal="gae", scale="ema_rms", gamma=0.99)
    assert recipe.describe().startswith("gae(1.0, gamma 0.99) - critic / ema_rms;")


def test_lambda_moves_the_window_of_a_mix_and_leaves_its_long_leg():
    lams = [term.lam for term in resolved("tb_gae_mix", lam=0.9).rule.terms]
    assert lams == [0.9, 0.9, 1.0, 1.0]
    alpha = [term.lam for term in resolved("tb_gae", lam_alpha=0.5).rule.terms]
    assert alpha == [LengthAdaptive(alpha=0.5)]


def test_a_rule_of_ones_own_has_the_loss_of_the_default():
    assert resolved("my.rules:credit").loss == PRESETS["rloo"].loss


@pytest.mark.parametrize(
    ("name", "loss", "pieces", "line"),
    [
        ("grppo", {}, {}, r"credit\.type = 'grppo' is neither one of rloo, grpo, .* nor a dotted"),
        ("grpo", {}, {"baseline": "mean"}, "baseline = 'mean': there are none, rloo"),
        ("grpo", {"type": "clip"}, {}, r"loss\.type = 'clip' is neither one of ppo_clip"),
        ("grpo", {"aggregation": "mean"}, {}, r"loss\.aggregation = 'mean': there are token_mean"),
        ("gigpo", {}, {"baseline": "rloo"}, "a sum of 2 terms"),
        ("grpo", {}, {"lam": 0.9}, "no meaning in grpo"),
        ("tb_gae", {}, {"lam": 0.9, "lam_alpha": 1.0}, "exclude each other"),
        ("grpo", {}, {"group_size": 1}, "nothing to compare"),
        ("tb_gae_mix", {}, {"group_size": 1}, "nothing to compare"),
        ("tb_gae", {"type": "gspo"}, {}, "gspo clips whole trajectories"),
        ("tb_gae", {}, {"baseline": "rloo"}, "hides the outcome"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(name, loss, pieces, line):
    with pytest.raises(ValueError, match=line) as error:
        resolved(name, loss, **pieces)
    assert "\n" not in str(error.value)


def test_a_critic_alone_needs_no_siblings():
    assert resolved("tb_gae", group_size=1).rule.terms[0].baseline == "critic"
