"""Seconds on a shared machine: what is compared runs in turns, and medians are kept.

Load that comes and goes hits all candidates of a comparison alike when they take turns, so their
ratio holds where each figure alone would not.
"""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

Function = Callable[..., Tensor | tuple[Tensor, ...]]
"""Tensors in, one tensor or several out."""


def take_turns(tasks: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Run each task once to warm up, then all of them in turn, and return the median seconds.

    Args:
        tasks: Name to what is timed; what it returns is dropped.
        rounds: How often each one is timed.
    """
    for task in tasks.values():
        task()
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds):
        for name, task in tasks.items():
            started = time.perf_counter()
            task()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


def there_and_back(function: Function, *inputs: Tensor) -> Callable[[], Sequence[Tensor]]:
    """Return forward and backward as one call, which returns the gradients of `inputs`.

    The gradient that comes from above is made by the first call and kept: no part of the time.
    """
    leaves = [x.detach().requires_grad_() for x in inputs]
    upstream: list[Tensor] = []

    def run() -> Sequence[Tensor]:
        outputs = function(*leaves)
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        if not upstream:
            upstream.extend(torch.ones_like(x) for x in outputs)
        return torch.autograd.grad(outputs, leaves, upstream)

    return run


def announce(line: str) -> None:
    """Write a line of progress to standard error."""
    sys.stderr.write(f"bench: {line}\n")
    sys.stderr.flush()
