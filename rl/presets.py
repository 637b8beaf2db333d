"""Presets: published algorithms as sums of terms, a trust region and an aggregation.

Takes the sections `credit` and `loss`, returns the recipe of the run: what the preset says, and
over it what the configuration sets. Loads no torch: `limosa check` prints recipes.

Where a source leaves a constant open (Kimi K2.5's band and penalty, for one), ours stands here.
Ratios are of the policy to what sampled the tokens, engine and lag included: with one update per
batch, the learner's own old policy is the policy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from rl.advantage import Rule, Term
from rl.aggregation import AGGREGATIONS
from rl.config import CreditSection, CriticSection, LossSection
from rl.mix_weights import Gate
from rl.temporal import LengthAdaptive

TRUST_REGIONS = ("ppo_clip", "cispo", "gspo", "dis", "icepop", "dppo_tv", "decoupled")
"""Names that `rl/trust_region.py` implements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """The loss of a token and its weight: the section `loss` with nothing left open."""

    trust_region: str = "dis"
    """One of TRUST_REGIONS, or a dotted path."""
    ratio_low: float = 0.2
    ratio_high: float = 4.0
    """Bounds of the ratio, 1 between them."""
    tv_bound: float = 0.2
    """Of `dppo_tv`: largest change of a token's probability."""
    sampler_correction: Literal["none", "tis", "mis"] = "none"
    sampler_cap: float = 2.0
    """Bound on the proximal over the behavior policy, where that is corrected."""
    log_ratio_penalty: float = 1e-3
    """Weight of the squared log-ratio."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    kl_weight: float = 0.0
    aggregation: str = "token_mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All that turns the groups of a step into a gradient."""

    rule: Rule
    loss: LossSettings
    source: str
    """Where it was published."""
    drops_equal_groups: bool = False
    """Groups whose rewards are all equal are left out, and others collected in their place."""
    needs_forks: bool = False
    """Values come from rollouts of copies of the environment, not from a critic."""

    def describe(self) -> str:
        """Write the recipe in one line."""
        terms = " + ".join(describe_term(term) for term in self.rule.terms)
        gate = " (gated by the critic)" if self.rule.gate else ""
        loss = self.loss
        return f"{terms}{gate}; {describe_trust_region(loss)}; {loss.aggregation}"


def describe_term(term: Term) -> str:
    """Write a term: `gae(0.98) of critic / ema_rms`."""
    lam = f"adaptive {term.lam.alpha:g}" if isinstance(term.lam, LengthAdaptive) else term.lam
    arguments = [f"{lam}"] if term.temporal == "gae" else []
    arguments += [f"gamma {term.gamma:g}"] if term.gamma != 1.0 else []
    temporal = f"{term.temporal}({', '.join(arguments)})" if arguments else term.temporal
    weight = "" if term.weight == 1.0 else f"{term.weight:g} "
    scale = "" if term.scale == "none" else f" / {term.scale}"
    return f"{weight}{temporal} - {term.baseline}{scale}"


def describe_trust_region(loss: LossSettings) -> str:
    """Write a trust region: `dis(0.2, 4) + 0.001 log^2`."""
    is_tv = loss.trust_region == "dppo_tv"
    bounds = f"{loss.tv_bound:g}" if is_tv else f"{loss.ratio_low:g}, {loss.ratio_high:g}"
    if loss.sampler_correction != "none":
        bounds += f", {loss.sampler_correction} {loss.sampler_cap:g}"
    penalty = f" + {loss.log_ratio_penalty:g} log^2" if loss.log_ratio_penalty else ""
    kl = f" + {loss.kl_weight:g} {loss.kl_estimator}" if loss.kl_weight else ""
    return f"{loss.trust_region}({bounds}){penalty}{kl}"


def _clip(low: float = 0.8, high: float = 1.2, aggregation: str = "token_mean") -> LossSettings:
    return LossSettings(
        trust_region="ppo_clip",
        ratio_low=low,
        ratio_high=high,
        log_ratio_penalty=0.0,
        aggregation=aggregation,
    )


_GRPO = Rule(terms=(Term(baseline="group_mean", scale="group_std"),))
_CENTRED = Rule(terms=(Term(baseline="group_mean"),))
_RLOO_SCALED = Term(baseline="rloo", scale="ema_rms")


def _critic(lam: float | LengthAdaptive, scale: str = "ema_rms") -> Term:
    return Term(baseline="critic", temporal="gae", lam=lam, scale=scale)


PRESETS: Mapping[str, Recipe] = {
    "rloo": Recipe(
        rule=Rule(terms=(Term(baseline="rloo"),)),
        loss=LossSettings(),
        source="arXiv 2402.14740, with the band of 2607.07508",
    ),
    "grpo": Recipe(
        rule=_GRPO, loss=_clip(aggregation="seq_mean_token_mean"), source="arXiv 2402.03300"
    ),
    "dr_grpo": Recipe(
        rule=_CENTRED, loss=_clip(aggregation="token_sum_const"), source="arXiv 2503.20783"
    ),
    "dapo": Recipe(
        rule=_GRPO, loss=_clip(high=1.28), source="arXiv 2503.14476", drops_equal_groups=True
    ),
    "reinforce_pp": Recipe(
        rule=Rule(terms=(Term(baseline="batch_mean", temporal="reward_to_go", scale="batch_std"),)),
        loss=_clip(),
        source="arXiv 2501.03262, whitened over turns",
    ),
    "gspo": Recipe(
        rule=_GRPO,
        loss=LossSettings(
            trust_region="gspo",
            ratio_low=1 - 3e-4,
            ratio_high=1 + 4e-4,
            log_ratio_penalty=0.0,
            aggregation="seq_mean_token_mean",
        ),
        source="arXiv 2507.18071",
    ),
    "cispo": Recipe(
        rule=_GRPO,
        loss=LossSettings(
            trust_region="cispo", ratio_low=0.0, ratio_high=5.0, log_ratio_penalty=0.0
        ),
        source="arXiv 2506.13585",
    ),
    "kimi_k2_5": Recipe(
        rule=_CENTRED, loss=LossSettings(), source="arXiv 2602.02276, K3: 2607.24653"
    ),
    "prime_dppo": Recipe(
        rule=_CENTRED,
        loss=LossSettings(trust_region="dppo_tv"),
        source="arXiv 2602.04879, PRIME-RL",
    ),
    "ppo": Recipe(
        rule=Rule(terms=(_critic(0.95, scale="batch_std"),)),
        loss=_clip(),
        source="arXiv 1707.06347, lambda per turn",
    ),
    "vapo": Recipe(
        rule=Rule(terms=(_critic(LengthAdaptive(alpha=0.05), scale="batch_std"),)),
        loss=_clip(high=1.28),
        source="arXiv 2504.05118, alpha in turns, without its likelihood term",
    ),
    "gigpo": Recipe(
        rule=Rule(
            terms=(
                Term(baseline="group_mean"),
                Term(baseline="state_group", temporal="reward_to_go", gamma=0.95),
            )
        ),
        loss=_clip(aggregation="seq_mean_token_mean"),
        source="arXiv 2505.10978",
    ),
    "gagpo": Recipe(
        rule=Rule(
            terms=(Term(baseline="state_group", temporal="gae", lam=0.95, scale="group_std"),)
        ),
        loss=_clip(),
        source="arXiv 2605.13217",
    ),
    "sao": Recipe(
        rule=Rule(terms=(_critic(LengthAdaptive(alpha=1.5), scale="none"),)),
        loss=LossSettings(log_ratio_penalty=0.0),
        source="arXiv 2607.07508, alpha in turns",
    ),
    "tb_gae": Recipe(
        rule=Rule(terms=(_critic(0.95),)), loss=LossSettings(), source="arXiv 2610.22192"
    ),
    "tb_gae_mix": Recipe(
        rule=Rule(terms=(_critic(0.8), _critic(0.98), _critic(1.0), _RLOO_SCALED), gate=Gate()),
        loss=LossSettings(),
        source="this project: short windows and a long one, weighed by how early the critic knows",
    ),
    "vine": Recipe(
        rule=Rule(terms=(_critic(0.0, scale="none"),)),
        loss=_clip(),
        source="arXiv 2410.01679",
        needs_forks=True,
    ),
}
"""By the name that `credit.type` uses."""


def resolve(credit: CreditSection, loss: LossSection) -> Recipe:
    """Work out the recipe of a run.

    Args:
        credit: The preset, and pieces that replace its own. With a rule of one's own (a dotted
            path) the loss is the preset rloo's.
        loss: Pieces that replace the preset's.

    Returns:
        The recipe; where `credit.type` is a dotted path, `rule` is not what credits.

    Raises:
        ValueError: no such preset or piece, or pieces that do not fit together.
    """
    preset = PRESETS["rloo"] if ":" in credit.type else find_preset(credit.type)
    set_pieces = {
        "trust_region" if name == "type" else name: value
        for name, value in loss.model_dump().items()
        if value is not None
    }
    recipe = replace(
        preset, rule=_override(preset.rule, credit), loss=replace(preset.loss, **set_pieces)
    )
    _require_fit(credit, recipe)
    return recipe


def require_trainable(recipe: Recipe, credit: CreditSection, critic: CriticSection) -> None:
    """Refuse what can be computed but not trained.

    Raises:
        ValueError: the recipe needs what a run does not have.
    """
    if recipe.needs_forks:
        raise ValueError(
            f"{credit.type} values states by playing on from copies of the environment, which runs "
            "do not have: it is there for `limosa bench credit`; use tb_gae_mix"
        )
    if not (credit.budget_is_visible or recipe.rule.needs_critic):
        raise ValueError(
            f"credit.budget_is_visible = false needs a critic to value what was cut off, and "
            f"{credit.type} has none: use tb_gae_mix, or let the prompt name the budget"
        )
    if recipe.rule.needs_critic and critic.loss == "bce":
        beyond = [name for name in ("turn_reward_weight", "effort_folder") if getattr(credit, name)]
        if beyond:
            raise ValueError(
                f"critic.loss = bce needs returns in [0, 1], and credit.{beyond[0]} leads beyond "
                "them: use critic.loss = mse"
            )


def find_preset(name: str) -> Recipe:
    """Find a preset.

    Raises:
        ValueError: no such preset.
    """
    if name not in PRESETS:
        known = ", ".join(PRESETS)
        raise ValueError(f"credit.type = {name!r} is neither one of {known} nor a dotted path")
    return PRESETS[name]


def _override(rule: Rule, credit: CreditSection) -> Rule:
    """Replace pieces of a rule's terms by those that the configuration sets."""
    single = {
        name: value
        for name in ("baseline", "temporal")
        if (value := getattr(credit, name)) is not None
    }
    if single and len(rule.terms) > 1:
        raise ValueError(
            f"credit.{next(iter(single))} cannot be set in {credit.type}, which is a sum of "
            f"{len(rule.terms)} terms: choose a preset of one term"
        )
    every = {
        name: value for name in ("gamma", "scale") if (value := getattr(credit, name)) is not None
    }
    lam = credit.lam if credit.lam_alpha is None else LengthAdaptive(alpha=credit.lam_alpha)
    terms = tuple(_with_lambda(replace(term, **single, **every), lam) for term in rule.terms)
    return replace(rule, terms=terms)


def _with_lambda(term: Term, lam: float | LengthAdaptive | None) -> Term:
    """Replace lambda where the term has a window: lambda 1 has none."""
    is_window = term.temporal == "gae" and term.lam != 1.0
    return replace(term, lam=lam) if is_window and lam is not None else term


def _require_fit(credit: CreditSection, recipe: Recipe) -> None:
    """Refuse what cannot work together."""
    loss, rule = recipe.loss, recipe.rule
    if loss.aggregation not in AGGREGATIONS:
        raise ValueError(
            f"loss.aggregation = {loss.aggregation!r}: there are {', '.join(AGGREGATIONS)}"
        )
    if ":" not in loss.trust_region and loss.trust_region not in TRUST_REGIONS:
        known = ", ".join(TRUST_REGIONS)
        raise ValueError(
            f"loss.type = {loss.trust_region!r} is neither one of {known} nor `package.module:name`"
        )
    if credit.lam is not None and credit.lam_alpha is not None:
        raise ValueError("credit.lam and credit.lam_alpha exclude each other: set one of them")
    has_window = any(term.temporal == "gae" for term in rule.terms)
    if (credit.lam is not None or credit.lam_alpha is not None) and not has_window:
        raise ValueError(f"credit.lam has no meaning in {credit.type}: none of its terms is gae")
    if credit.group_size == 1 and rule.needs_siblings and ":" not in credit.type:
        raise ValueError(
            f"credit.group_size = 1 leaves {credit.type} nothing to compare: use 2 or more, or a "
            "rule without siblings (tb_gae, sao, reinforce_pp)"
        )
    if loss.trust_region == "gspo" and any(term.temporal != "outcome" for term in rule.terms):
        raise ValueError(
            f"gspo clips whole trajectories, and the advantages of {credit.type} differ within "
            "one: use ppo_clip, dis or another region per token"
        )
