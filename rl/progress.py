"""What a person sees while a run goes on: always on standard error, one line or table row a step.

`open_progress` chooses: a live table (Rich) where standard error is a terminal, plain lines where
it is a file or a pipe. The loop only knows the `Progress` protocol.
"""

import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rl.metrics import MetricValue

_PASS_RATE = "rewards/pass_rate/"
_HELD_OUT = "rewards/held_out_pass_at_1/"
_MAX_ROWS = 16


class Progress(AbstractContextManager["Progress"], Protocol):
    """Shows how far a run is. Every method returns at once."""

    def stage(self, text: str) -> None:
        """Say what the run does now: "starting the engine", "evaluating before training"."""
        ...

    def count(self, text: str, done: int, total: int) -> None:
        """Say how far a counted stage is: "playing demonstrations", 120 of 6000."""
        ...

    def step(self, step: int, total: int, metrics: Mapping[str, MetricValue]) -> None:
        """Show update `step` of `total` with its metrics."""
        ...

    def evaluation(self, step: int, metrics: Mapping[str, MetricValue]) -> None:
        """Show a held-out evaluation of the weights after `step` updates."""
        ...


def open_progress(stream: TextIO | None = None) -> Progress:
    """Return a live table where `stream` (standard error by default) is a terminal, else lines."""
    target = sys.stderr if stream is None else stream
    return LiveProgress(Console(file=target)) if target.isatty() else PlainProgress(target)


def _columns(step: int, total: int, metrics: Mapping[str, MetricValue]) -> dict[str, str]:
    """The columns of one step, in order: title to text."""
    rates = _by_environment(metrics, _PASS_RATE)
    columns = {"step": f"{step}/{total}"}
    columns |= {name: _number(rate, ".2f") for name, rate in rates.items()}
    for title, name, form in (
        ("tokens/s", "rollout/tokens_per_second", ".0f"),
        ("lag", "rollout/lag_mean", ".2f"),
        ("gap", "rl/logprob_gap_mean", ".1e"),
        ("entropy", "rl/entropy", ".3f"),
        ("seconds", "time/step_seconds", ".1f"),
    ):
        columns[title] = _number(metrics.get(name), form)
    return columns


def _by_environment(metrics: Mapping[str, MetricValue], prefix: str) -> dict[str, MetricValue]:
    return {
        name.removeprefix(prefix): value
        for name, value in metrics.items()
        if name.startswith(prefix)
    }


def _number(value: MetricValue, form: str) -> str:
    return "-" if value is None else format(value, form)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def _evaluation_line(step: int, metrics: Mapping[str, MetricValue]) -> str:
    rates = _by_environment(metrics, _HELD_OUT)
    text = ", ".join(f"{name} {_number(rate, '.3f')}" for name, rate in rates.items())
    return f"held-out pass@1 after {step} updates: {text}"


class _Clock:
    """Wall time since the start, and the time left at the mean pace of the steps so far."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._first_step: float | None = None
        self._num_steps = 0

    def elapsed(self) -> str:
        return _duration(time.monotonic() - self._start)

    def tick(self, step: int, total: int, seconds: MetricValue) -> str:
        now = time.monotonic()
        if self._first_step is None:
            self._first_step = now - (seconds or 0.0)
        self._num_steps += 1
        return _duration((now - self._first_step) / self._num_steps * (total - step))


class PlainProgress:
    """One line per event: for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._clock = _Clock()
        self._next_count = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def stage(self, text: str) -> None:
        """Write the stage on a line of its own."""
        self._next_count = 0.0
        self._line(text)

    def count(self, text: str, done: int, total: int) -> None:
        """Write a line at most every ten seconds, and at the end."""
        now = time.monotonic()
        if done < total and now < self._next_count:
            return
        self._next_count = now + 10.0
        self._line(f"{text}: {done} of {total}")

    def step(self, step: int, total: int, metrics: Mapping[str, MetricValue]) -> None:
        """Write the step's columns as `title value` pairs."""
        left = self._clock.tick(step, total, metrics.get("time/step_seconds"))
        columns = _columns(step, total, metrics) | {"left": left}
        self._line("  ".join(f"{title} {text}" for title, text in columns.items()))

    def evaluation(self, step: int, metrics: Mapping[str, MetricValue]) -> None:
        """Write the held-out pass rates."""
        self._line(_evaluation_line(step, metrics))

    def _line(self, text: str) -> None:
        self._stream.write(f"[{self._clock.elapsed()}] {text}\n")
        self._stream.flush()


class LiveProgress:
    """A table that grows by a row a step, with the current stage below it."""

    def __init__(self, console: Console) -> None:
        self._clock = _Clock()
        self._stage = "starting"
        self._rows: list[dict[str, str]] = []
        self._live = Live(
            console=console, get_renderable=self._render, refresh_per_second=4, transient=False
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def stage(self, text: str) -> None:
        """Replace the line below the table."""
        self._stage = text

    def count(self, text: str, done: int, total: int) -> None:
        """Replace the line below the table."""
        self._stage = f"{text}: {done} of {total}"

    def step(self, step: int, total: int, metrics: Mapping[str, MetricValue]) -> None:
        """Add a row."""
        left = self._clock.tick(step, total, metrics.get("time/step_seconds"))
        self._rows.append(_columns(step, total, metrics) | {"left": left})

    def evaluation(self, step: int, metrics: Mapping[str, MetricValue]) -> None:
        """Print the held-out pass rates above the table, where they stay."""
        self._live.console.print(Text(_evaluation_line(step, metrics), style="bold"))

    def _render(self) -> Group:
        status = Text(f"{self._clock.elapsed()}  {self._stage}", style="dim")
        if not self._rows:
            return Group(status)
        table = Table(box=None, header_style="bold", pad_edge=False)
        for title in self._rows[-1]:
            table.add_column(title, justify="right")
        for row in self._rows[-_MAX_ROWS:]:
            table.add_row(*(row.get(title, "-") for title in self._rows[-1]))
        return Group(table, status)
