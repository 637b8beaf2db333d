"""The optimizer: AdamW with a linear warm-up to a constant rate, and gradient clipping."""

from collections.abc import Iterable

import torch
from torch import nn

from rl.config import LearnerSection


class Optimizer:
    """AdamW over the parameters of one model, with its schedule and clipping."""

    def __init__(self, parameters: Iterable[nn.Parameter], section: LearnerSection) -> None:
        """Take over parameters.

        Args:
            parameters: Those to train; their `.grad` is read and cleared by `step`.
            section: Rates, decay and bounds.
        """
        self._section = section
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._adamw = torch.optim.AdamW(
            self._parameters,
            lr=section.learning_rate,
            betas=(section.beta1, section.beta2),
            weight_decay=section.weight_decay,
        )
        self.num_updates = 0

    @property
    def learning_rate(self) -> float:
        """Rate of the next update: rises linearly over the first `warmup_steps`, then constant."""
        warmup = self._section.warmup_steps
        share = min(1.0, (self.num_updates + 1) / warmup) if warmup else 1.0
        return self._section.learning_rate * share

    def step(self) -> float:
        """Clip the accumulated gradient, update the parameters, and clear the gradient.

        Returns:
            The gradient's global norm before clipping.

        Raises:
            ArithmeticError: the norm is not finite; the parameters are left as they were.
        """
        norm = nn.utils.clip_grad_norm_(self._parameters, self._section.max_grad_norm)
        if not bool(torch.isfinite(norm)):
            raise ArithmeticError(f"gradient norm is {float(norm)} in update {self.num_updates}")
        for group in self._adamw.param_groups:
            group["lr"] = self.learning_rate
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)
        self.num_updates += 1
        return float(norm)
