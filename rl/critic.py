r"""The critic: what an episode is still expected to bring, before each of its turns.

Takes trajectories, returns values and learns from outcomes. A value head reads the hidden state at
the last token before a turn, which has seen all that the policy sees, and nothing of the turn:

    <user> P P <policy>  A A <end>  <tool> R <policy>  A <end>
                  ^ V(s_0)                      ^ V(s_1)     ^ what is left behind the last turn

The states are the policy's (`shared`: no gradient flows back, so the policy does not change), or
those of a copy of it, which stays as it was (`frozen`) or trains with the head (`copy`). A shared
trunk costs nothing, and moves with every update under a head that has learned to read it: where the
policy takes large steps, a frozen one is read better. Targets are what came after, all
of it (lambda = 1; VC-PPO, arXiv 2503.01491): a critic that learned from its own estimates would be
biased in a way that no window undoes. With rewards in [0, 1] the loss is the binary cross-entropy
with the reward as a probability, which keeps values there.

A step's trajectories are judged first and learned from after that, so all that is measured on them
is held out, and no advantage is taken from a critic that has seen its outcome.
"""

import copy
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from model.hybrid import HybridForCausalLM
from model.mixer import PackedMixer
from rl.baseline import returns_to_go
from rl.batch import lay_end_to_end
from rl.config import CreditSection, CriticSection
from rl.credit import Critique, grid_options, scored_rows
from rl.critic_measures import (
    CriticStatistics,
    measure_calibration,
    measure_recognition,
)
from rl.effort_budget import EffortBudget
from rl.mix_weights import ERRORS_DECAY, Errors
from rl.turn_rows import Row, TurnValues, build_grid, turn_starts
from rollout.trajectory import Group, Segment, Trajectory

FILE_NAME = "critic.safetensors"
"""Beside the policy in a checkpoint folder."""
REMEMBERED_STEPS = 4
"""Steps of the run whose trajectories the critic learns from: older ones are of another policy."""
MAX_GRAD_NORM = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A segment, and the tokens of it at whose hidden states the head reads."""

    segment: Segment
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One step's turns and what came after each."""

    readings: tuple[Reading, ...]
    states: Float[Tensor, "N D"]
    """Of the trunk as it was in that step."""
    targets: Float[Tensor, " N"]
    """nan at ends of trajectories, which have no turn to learn from."""


class ValueHead(nn.Module):
    """From a hidden state to a value: one hidden layer, and a last one that starts at zero."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.hidden = nn.Linear(width, width)
            self.out = nn.Linear(width, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, states: Float[Tensor, "N D"]) -> Float[Tensor, " N"]:
        """Return a number per state: a logit under bce, the value itself under mse."""
        return self.out(functional.silu(self.hidden(states))).squeeze(1)


class Critic:
    """A value head, its trunk, and what they remember of the last steps."""

    def __init__(
        self,
        section: CriticSection,
        credit: CreditSection,
        policy: HybridForCausalLM,
        max_batch_tokens: int,
        budget: EffortBudget = EffortBudget(),  # noqa: B008  frozen
    ) -> None:
        """Make a critic that expects the same of every state.

        Args:
            section: Trunk, loss, rate and number of steps.
            credit: What rewards count; the critic learns to expect what credit is given for.
            policy: Gives the width, and the weights of a copied trunk.
            max_batch_tokens: Tokens per forward, unless one segment has more.
            budget: What trajectories may take before they count as failed.
        """
        self.errors = Errors()
        """On held-out outcomes, over the last steps."""
        self.is_restored = False
        """Whether it began with the weights of a checkpoint."""
        self._section = section
        self._credit = credit
        self._budget = budget
        self._max_batch_tokens = max_batch_tokens
        self._head = ValueHead(policy.config.shape.hidden_size, seed=0)
        self._trunk = None if section.trunk == "shared" else copy.deepcopy(policy)
        if self._trunk is not None:
            self._trunk.requires_grad_(section.trunk == "copy")
            self._trunk.lm_head.requires_grad_(False)
        self._parameters = [p for p in self._modules().parameters() if p.requires_grad]
        self._adamw = torch.optim.AdamW(
            self._parameters, lr=section.learning_rate, weight_decay=0.0
        )
        self._memory: deque[Lesson] = deque(maxlen=REMEMBERED_STEPS)

    def study(
        self, groups: Sequence[Group], policy: HybridForCausalLM
    ) -> tuple[Critique, CriticStatistics | None]:
        """Judge a step's trajectories, then learn from them and from those of the last steps.

        Args:
            groups: All groups of the step; trajectories without a score are left out.
            policy: Current weights; they are read only.

        Returns:
            The values from before learning, and what they say of the critic (None where no
            trajectory has a score).

        Raises:
            ArithmeticError: the critic's gradient is not finite.
        """
        rows = scored_rows(groups, at_least=1, budget=self._budget)
        if not rows:
            return Critique(values={}, errors=self.errors), None
        readings = tuple(reading for row in rows for reading in read(row.trajectory))
        with torch.no_grad():
            trunk = policy if self._trunk is None else self._trunk
            states = torch.cat(list(self._observe(readings, trunk)))
            judged = self._value(self._head(states)).double().numpy()
        values = split_values(rows, judged)
        grid = build_grid(rows, grid_options(self._credit, values))
        self._remember(readings, states, lay_out_targets(rows, returns_to_go(grid)))
        loss = 0.0
        for _ in range(self._section.steps_per_update):
            loss = self._step()
        errors = Errors.of(grid)
        self.errors = self.errors.faded(ERRORS_DECAY) + errors
        statistics = CriticStatistics(
            explained_variance=errors.explained_variance,
            calibration=measure_calibration(grid),
            recognition=measure_recognition(grid),
            loss=loss,
        )
        return Critique(values=values, errors=self.errors), statistics

    def save(self, folder: Path) -> None:
        """Write head and copied trunk beside a checkpoint of the policy, in float32."""
        weights = {name: value.contiguous() for name, value in self._modules().state_dict().items()}
        save_file(weights, folder / FILE_NAME)

    def restore(self, folder: Path) -> None:
        """Take over the critic of a checkpoint folder, if there is one.

        Raises:
            ValueError: it is of another shape or trunk.
        """
        path = folder / FILE_NAME
        if not path.is_file():
            return
        try:
            self._modules().load_state_dict(load_file(path))
        except RuntimeError as error:
            first = str(error).splitlines()[0]
            raise ValueError(
                f"{path} is of another critic than critic.trunk = {self._section.trunk}: {first}"
            ) from error
        self.is_restored = True

    def _modules(self) -> nn.ModuleDict:
        trunk = {} if self._trunk is None else {"trunk": self._trunk}
        return nn.ModuleDict({"head": self._head, **trunk})

    def _value(self, numbers: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
        return numbers.sigmoid() if self._section.loss == "bce" else numbers

    def _remember(
        self,
        readings: tuple[Reading, ...],
        states: Float[Tensor, "N D"],
        targets: np.ndarray,
    ) -> None:
        lesson = Lesson(readings=readings, states=states, targets=torch.from_numpy(targets).float())
        self._memory.append(lesson)

    def _step(self) -> float:
        """Make one update over all that is remembered; return its mean loss."""
        total = sum(int(torch.isfinite(lesson.targets).sum()) for lesson in self._memory)
        loss_sum = 0.0
        for lesson in self._memory:
            at = 0
            for states in self._states_of(lesson):
                targets = lesson.targets[at : at + len(states)]
                at += len(states)
                known = torch.isfinite(targets)
                loss = self._losses(self._head(states[known]), targets[known]).sum() / total
                loss.backward()
                loss_sum += float(loss.detach())
        norm = nn.utils.clip_grad_norm_(self._parameters, MAX_GRAD_NORM)
        if not bool(torch.isfinite(norm)):
            self._adamw.zero_grad(set_to_none=True)
            raise ArithmeticError(f"the critic's gradient norm is {float(norm)}")
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)
        return loss_sum

    def _losses(
        self, numbers: Float[Tensor, " N"], targets: Float[Tensor, " N"]
    ) -> Float[Tensor, " N"]:
        if self._section.loss == "bce":
            return functional.binary_cross_entropy_with_logits(numbers, targets, reduction="none")
        return (numbers - targets).square()

    def _states_of(self, lesson: Lesson) -> Iterator[Float[Tensor, "N D"]]:
        """Give the states of a lesson, in pieces; those of a trunk that trains with gradient."""
        if self._trunk is None or self._section.trunk == "frozen":
            yield lesson.states
        else:
            yield from self._observe(lesson.readings, self._trunk)

    def _observe(
        self, readings: Sequence[Reading], trunk: HybridForCausalLM
    ) -> Iterator[Float[Tensor, "N D"]]:
        """Run the trunk over segments; give the hidden states at their positions, in pieces."""
        for piece in split_readings(readings, self._max_batch_tokens):
            token_ids, cu_seqlens, expert_ids = lay_end_to_end([each.segment for each in piece])
            # Replayed experts are the policy's; a trunk of its own has a router of its own.
            replayed = None if trunk is self._trunk else expert_ids
            hidden = trunk.model.run(token_ids, PackedMixer(cu_seqlens), replayed).hidden
            positions = [
                int(start) + position
                for start, each in zip(cu_seqlens, piece, strict=False)
                for position in each.positions
            ]
            yield hidden[torch.tensor(positions, dtype=torch.int64)]


def read(trajectory: Trajectory) -> list[Reading]:
    """Find the tokens whose hidden states are judged: before each turn, and the very last."""
    positions: dict[int, list[int]] = {}
    for start in turn_starts(trajectory):
        positions.setdefault(start.segment, []).append(max(0, start.position - 1))
    last = len(trajectory.segments) - 1
    positions.setdefault(last, []).append(len(trajectory.segments[last].token_ids) - 1)
    return [
        Reading(segment=trajectory.segments[number], positions=tuple(places))
        for number, places in sorted(positions.items())
    ]


def split_readings(readings: Sequence[Reading], max_tokens: int) -> Iterator[list[Reading]]:
    """Split into runs of at most so many tokens, in order; one longer segment is its own run."""
    piece: list[Reading] = []
    filled = 0
    for reading in readings:
        length = len(reading.segment.token_ids)
        if piece and filled + length > max_tokens:
            yield piece
            piece, filled = [], 0
        piece.append(reading)
        filled += length
    if piece:
        yield piece


def split_values(rows: Sequence[Row], judged: Float[np.ndarray, " N"]) -> dict[str, TurnValues]:
    """Give each trajectory its values: those before its turns, and the one behind the last."""
    counts = [len(turn_starts(row.trajectory)) + 1 for row in rows]
    parts = np.split(judged, np.cumsum(counts)[:-1])
    return {
        row.trajectory.id: TurnValues(before=part[:-1], after=float(part[-1]))
        for row, part in zip(rows, parts, strict=True)
    }


def lay_out_targets(rows: Sequence[Row], to_go: Float[np.ndarray, "I H"]) -> np.ndarray:
    """Lay out what came after each turn in the order of the readings, nan behind the last turn."""
    parts = [
        np.append(to_go[place, : len(turn_starts(row.trajectory))], np.nan)
        for place, row in enumerate(rows)
    ]
    return np.concatenate(parts)
