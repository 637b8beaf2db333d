r"""Credit: from the outcomes of a step's groups to an advantage for every token the policy wrote.

Takes groups, returns samples. Groups become a grid of turns (rl/turn_rows.py), the preset's terms
add up to an advantage per turn (rl/advantage.py), and each turn's tokens get it.

The default, `rloo` (leave-one-out REINFORCE; Kool, van Hoof & Welling 2019, "Buy 4 REINFORCE
samples, get a baseline for free!"), gives sibling i of a group with rewards R_1 .. R_n

    A_i = R_i - 1/(n-1) * sum_{j != i} R_j   =   n/(n-1) * (R_i - mean(R))

on each of its POLICY tokens. There is no division by the group's standard deviation: that would
weight tasks by how hard they are.

Only siblings with a score count. One whose outcome is Invalid says nothing about the policy: it is
in no baseline and in no batch, and n is the number of the others. Where siblings are compared and
n < 2, the group gives no sample. A turn whose sampling was aborted gets advantage 0.

A group whose rewards are all equal does give samples, with advantage 0: no policy gradient, but
their tokens count in the one denominator of the loss and pay its squared log-ratio. DAPO (arXiv
2503.14476) drops such groups and samples others in their place; so does the preset `dapo`, and no
other, because

- an update then shrinks with the share of groups that say something; dropped, the few that are left
  would move the policy as far as a full batch, the more so the closer a task is to solved or lost;
- where nothing can be learned, the squared log-ratio holds the policy to what sampled the group;
- what a step costs and when it is complete do not depend on the rewards.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64

from rl.advantage import Term, combine
from rl.batch import Sample
from rl.config import CreditSection, LossSection
from rl.dotted_path import load_attribute
from rl.effort_budget import EffortBudget
from rl.mix_weights import Errors
from rl.presets import PRESETS, Recipe, resolve
from rl.scale import RunningSquare
from rl.turn_rows import GridOptions, Row, TurnValues, build_grid, spread, turn_starts
from rollout.trajectory import Group

CreditRule = Callable[[Sequence[Group]], list[Sample]]
"""From the groups of a step to its samples. A rule may leave out trajectories and segments; it
gives a token that the policy did not write the advantage 0 (`Sample` checks it)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Critique:
    """What a critic says of a step's trajectories."""

    values: Mapping[str, TurnValues]
    """By the trajectory's id."""
    errors: Errors
    """On held-out outcomes, over the last steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageStatistics:
    """Advantages of a step's turns, before and without the weights of the loss."""

    mean: float
    """Not 0 under a critic that is wrong in one direction."""
    rms: float
    num_turns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """A step's samples, and what was found on the way."""

    samples: list[Sample]
    terms: tuple[Term, ...] = ()
    """The terms with the weights that they had; none where the rule was one's own."""
    statistics: AdvantageStatistics | None = None
    """None where there is no sample or the rule was one's own."""


class CreditAssigner:
    """Applies a run's rule, step after step; keeps what scales have seen of earlier steps."""

    def __init__(
        self,
        section: CreditSection,
        recipe: Recipe,
        budget: EffortBudget = EffortBudget(),  # noqa: B008  frozen
    ) -> None:
        """Prepare.

        Args:
            section: `type` (a dotted path is a rule of one's own), visibility of budgets, and turn
                rewards.
            recipe: Whose terms are added up.
            budget: What trajectories may take; a rule of one's own does not look at it.

        Raises:
            ValueError: a rule of one's own cannot be loaded.
        """
        self._section = section
        self._rule = recipe.rule
        self._budget = budget
        self._own_rule = load_own_rule(section.type) if ":" in section.type else None
        self._running: tuple[RunningSquare, ...] = ()

    def assign(self, groups: Sequence[Group], critique: Critique | None = None) -> Credit:
        """Credit the groups of one step.

        Args:
            groups: All of them.
            critique: What the critic says of their trajectories, where the rule has one.

        Returns:
            Samples, one per segment of each trajectory that counts, in the order of the groups.

        Raises:
            ValueError: the rule needs a critic and there is no critique, or a number is not finite.
        """
        if self._own_rule is not None:
            return Credit(samples=self._own_rule(groups))
        terms = self._rule.terms_at(critique.errors.foresight if critique else None)
        active = [term for term in terms if term.weight != 0.0]
        at_least = 2 if any(term.needs_siblings for term in active) else 1
        rows = scored_rows(groups, at_least, self._budget)
        if not rows:
            return Credit(samples=[], terms=terms)
        is_judged = critique is not None and any(term.needs_critic for term in active)
        values = critique.values if critique is not None and is_judged else None
        with_states = any(term.baseline == "state_group" for term in active)
        grid = build_grid(rows, grid_options(self._section, values, with_states=with_states))
        advantages, self._running = combine(grid, terms, self._running)
        advantages = np.where(_aborted(rows, grid.mask.shape), 0.0, advantages)
        samples = [
            Sample(
                segment=segment,
                advantages=of_token,
                trajectory_id=row.trajectory.id,
                group_id=str(row.group),
            )
            for row, of_turn in zip(rows, advantages, strict=True)
            for segment, of_token in spread(row.trajectory, of_turn)
        ]
        return Credit(samples=samples, terms=terms, statistics=_measure(advantages[grid.mask]))


def assign_credit(groups: Sequence[Group], section: CreditSection) -> list[Sample]:
    """Credit one step's groups by a rule that needs no critic, as the first step of a run.

    Args:
        groups: All groups of the step.
        section: `type` names a preset, or is a dotted path `package.module:function`.

    Raises:
        ValueError: no such rule, or one that needs a critic.
    """
    return CreditAssigner(section, resolve(section, LossSection())).assign(groups).samples


def load_own_rule(path: str) -> CreditRule:
    """Find a credit rule by its dotted path.

    Raises:
        ValueError: no such rule.
    """
    return load_attribute("credit.type", path, known=tuple(PRESETS))


def rloo(groups: Sequence[Group]) -> list[Sample]:
    """Give every sibling its score minus the mean score of the others (equation above)."""
    section = CreditSection()
    return CreditAssigner(section, PRESETS["rloo"]).assign(groups).samples


def grid_options(
    section: CreditSection, values: Mapping[str, TurnValues] | None, *, with_states: bool = False
) -> GridOptions:
    """Say how trajectories become a grid: by the configuration, with a critic's values or none."""
    return GridOptions(
        with_states=with_states,
        turn_reward_weight=section.turn_reward_weight,
        values=values,
        values_truncated=not section.budget_is_visible,
    )


def scored_rows(groups: Sequence[Group], at_least: int, budget: EffortBudget) -> list[Row]:
    """List the trajectories with a score, of groups that have at least so many of them."""
    rows: list[Row] = []
    for number, group in enumerate(groups):
        scored = [
            Row(trajectory=member, group=number, reward=reward)
            for member in group.trajectories
            if (reward := budget.reward(member)) is not None
        ]
        rows += scored if len(scored) >= at_least else []
    return rows


def _aborted(rows: Sequence[Row], shape: tuple[int, int]) -> Bool[np.ndarray, "I H"]:
    """Mark the turns whose sampling was aborted: the run's doing, not the policy's."""
    marks = np.zeros(shape, dtype=bool)
    for place, row in enumerate(rows):
        aborted = {turn.index for turn in row.trajectory.turns if turn.finish == "abort"}
        if aborted:
            for column, start in enumerate(turn_starts(row.trajectory)):
                marks[place, column] = start.turn in aborted
    return marks


def _measure(advantages: Float64[np.ndarray, " n"]) -> AdvantageStatistics:
    return AdvantageStatistics(
        mean=float(advantages.mean()),
        rms=float(np.sqrt(np.square(advantages).mean())),
        num_turns=len(advantages),
    )
