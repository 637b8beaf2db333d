"""The run folder: everything that a run leaves behind, in one place.

    runs/quickstart-20260114-093012/
        input/              the configuration files as they were given, and the overrides
        config.json         the configuration, fully resolved; `limosa train` accepts it as input
        tokenizer.json      of the checkpoint that the run began with
        metrics.jsonl       one line per step and per evaluation (see rl/metrics.py)
        trajectories/       step-0001.jsonl, evaluation-0000.jsonl, ... (rollout.trajectory_store)
        checkpoints/        step-0024/ and so on: Hugging Face folders
        summary.json        how the run ended, and its result
        log.txt             the log, with the traceback of a failure
        logs/               logs of the engines and their actors

Takes what the loop hands over after each step, returns nothing: `limosa show`, `export` and `eval`
read the folder.
"""

import json
import logging
import shutil
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from rl.config import RunConfig
from rl.metrics import EVALUATION, PRETRAINING, STEP, MetricsLog, MetricValue
from rollout.tokenizer import FILE_NAME as TOKENIZER_FILE
from rollout.trajectory import Group, Trajectory

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a finished run has to say: the object that `limosa train --json` prints."""

    folder: Path
    checkpoint: Path
    """The last checkpoint."""
    before: Mapping[str, float]
    """Held-out pass@1 of each environment before the first update."""
    after: Mapping[str, float]
    """The same tasks after the last update."""
    steps: int
    wall_seconds: float
    logprob_gap_mean: float
    """Nats: largest over the steps of `rl/logprob_gap_mean`, probes included."""
    logprob_gap_max: float
    """Nats: largest gap of any checked token, probes included."""
    recomputed_token_ratio: float
    """Tokens the engine computed per token of the trajectories; publishes counted apart."""
    mixed_version_tokens: int
    """POLICY tokens after a change of version inside their segment."""
    invalid: Mapping[str, int]
    """Training episodes without a score, by reason."""

    def to_json(self) -> dict[str, object]:
        """Return plain values, the folder under the key `run`."""
        fields = asdict(self)
        fields.pop("folder")
        return {"run": str(self.folder), **fields, "checkpoint": str(self.checkpoint)}


class Run:
    """A run folder, open for recording (`create`) or only for reading (`open`).

    As a context manager it sends the log of this process to the folder, and says in `summary.json`
    how the run ended: finished, failed or interrupted.
    """

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self.folder = folder
        self.config = config
        self.has_records = False
        """Whether a step or an evaluation has been recorded by this object."""
        self._metrics = MetricsLog(folder / "metrics.jsonl")
        self._log_handler: logging.Handler | None = None
        self._is_summarized = False

    @classmethod
    def create(
        cls, config: RunConfig, files: Sequence[Path] = (), overrides: Sequence[str] = ()
    ) -> Self:
        """Make a new folder `<run.folder>/<run.name>-<date>-<time>` for a validated configuration.

        Args:
            config: the resolved configuration; written as `config.json`.
            files: the files it came from; copied into `input/`.
            overrides: the `section.key=value` overrides; written to `input/overrides.txt`.

        Raises:
            ValueError: the folder cannot be made; one line.
        """
        stem = f"{config.run.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        folder = _make_new_folder(config.run.folder, stem)
        for name in ("input", "trajectories", "checkpoints"):
            (folder / name).mkdir()
        for index, file in enumerate(files):
            copy = folder / "input" / file.name
            if copy.exists():
                copy = copy.with_name(f"{index}-{file.name}")
            shutil.copyfile(file, copy)
        if overrides:
            text = "\n".join(overrides) + "\n"
            (folder / "input" / "overrides.txt").write_text(text, encoding="utf-8")
        (folder / "config.json").write_text(config.model_dump_json(indent=2) + "\n", "utf-8")
        tokenizer = config.model.checkpoint / TOKENIZER_FILE
        if tokenizer.is_file():  # so that the trajectories stay readable wherever the folder goes
            shutil.copyfile(tokenizer, folder / TOKENIZER_FILE)
        return cls(folder, config)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open an existing run folder for reading.

        Raises:
            ValueError: the folder is not a run folder, or its configuration is not readable.
        """
        path = folder / "config.json"
        if not path.is_file():
            raise ValueError(f"{folder} is not a run folder: it has no config.json")
        try:
            config = RunConfig.model_validate_json(path.read_text(encoding="utf-8"))
        except ValueError as error:
            first = str(error).splitlines()[0]
            raise ValueError(f"{path} does not fit this version of limosa: {first}") from error
        return cls(folder, config)

    def __enter__(self) -> Self:
        handler = logging.FileHandler(self.log_path, encoding="utf-8")
        handler.setFormatter(
            logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")
        )
        root = logging.getLogger()
        root.addHandler(handler)
        root.setLevel(min(root.level, logging.INFO))
        self._log_handler = handler
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            text = "".join(traceback.format_exception(kind, error, trace))
            _log.error("the run ends with an error\n%s", text)
            if not self._is_summarized:
                is_failure = isinstance(error, Exception)
                failure = {"status": "failed", "error": f"{type(error).__name__}: {error}"}
                self._write_summary(failure if is_failure else {"status": "interrupted"})
        if self._log_handler is not None:
            logging.getLogger().removeHandler(self._log_handler)
            self._log_handler.close()
            self._log_handler = None

    @property
    def log_path(self) -> Path:
        """File of the log."""
        return self.folder / "log.txt"

    @property
    def metrics_path(self) -> Path:
        """File of the metrics."""
        return self.folder / "metrics.jsonl"

    @property
    def trajectories_folder(self) -> Path:
        """Folder of the recorded trajectories."""
        return self.folder / "trajectories"

    @property
    def engine_logs(self) -> Path:
        """Folder of the logs of engines and actors."""
        return self.folder / "logs"

    def checkpoint_folder(self, step: int) -> Path:
        """Folder for the weights after `step` updates; the caller writes it."""
        return self.folder / "checkpoints" / f"step-{step:04d}"

    def checkpoints(self) -> dict[int, Path]:
        """Return the written checkpoints by step, in order of the steps."""
        folders = sorted((self.folder / "checkpoints").glob("step-*"))
        return {
            int(folder.name.removeprefix("step-")): folder
            for folder in folders
            if (folder / "config.json").is_file()
        }

    def record_step(
        self, step: int, metrics: Mapping[str, MetricValue], groups: Sequence[Group]
    ) -> None:
        """Record update number `step` (from 1): its metrics and the groups it learned from."""
        self._append_trajectories(f"{STEP}-{step:04d}", groups)
        self._metrics.write(STEP, step, metrics)
        self.has_records = True

    def record_evaluation(
        self, step: int, metrics: Mapping[str, MetricValue], trajectories: Sequence[Trajectory]
    ) -> None:
        """Record a held-out evaluation of the weights after `step` updates (0: before training)."""
        groups = [
            Group(id=trajectory.id, task=trajectory.episode.task, trajectories=(trajectory,))
            for trajectory in trajectories
        ]
        self._append_trajectories(f"{EVALUATION}-{step:04d}", groups)
        self._metrics.write(EVALUATION, step, metrics)
        self.has_records = True

    def record_pretraining(self, step: int, metrics: Mapping[str, MetricValue]) -> None:
        """Record step number `step` (from 1) in which the critic alone was trained."""
        self._metrics.write(PRETRAINING, step, metrics)
        self.has_records = True

    def record_failure(self, groups: Sequence[Group]) -> None:
        """Record groups that a step could not learn from, for a replay."""
        self._append_trajectories("failure-0000", groups)
        self.has_records = True

    def record_collection(self, groups: Sequence[Group]) -> None:
        """Record groups that were collected without training."""
        self._append_trajectories("collection-0000", groups)
        self.has_records = True

    def finish(self, values: Mapping[str, object]) -> None:
        """Write `summary.json`: the run is complete, and `values` is what came of it."""
        self._write_summary({"status": "finished", **values})

    def discard(self) -> None:
        """Remove the folder of a run that never began: its input turned out to be bad.

        Raises:
            ValueError: something has been recorded, and nothing recorded is ever removed.
        """
        if self.has_records:
            raise ValueError(f"{self.folder} holds records")
        shutil.rmtree(self.folder)
        parent = self.folder.parent
        if not any(parent.iterdir()):
            parent.rmdir()

    def _append_trajectories(self, stem: str, groups: Sequence[Group]) -> None:
        from rollout.trajectory_store import append_group

        for group in groups:
            append_group(self.trajectories_folder / f"{stem}.jsonl", group)

    def _write_summary(self, summary: Mapping[str, object]) -> None:
        text = json.dumps(summary, indent=2) + "\n"
        (self.folder / "summary.json").write_text(text, encoding="utf-8")
        self._is_summarized = True


def _make_new_folder(parent: Path, stem: str) -> Path:
    """Make `parent/stem`, or `parent/stem-2` and so on where runs start in the same second.

    Raises:
        ValueError: the folder cannot be made; one line.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"run.folder = {parent}: cannot be made: {error.strerror}") from error
    count = 1
    while True:
        folder = parent / (stem if count == 1 else f"{stem}-{count}")
        try:
            folder.mkdir()
        except FileExistsError:
            count += 1
        except OSError as error:
            raise ValueError(f"the run folder {folder} cannot be made: {error.strerror}") from error
        else:
            return folder
