"""What each verb of the command line does: parsed arguments in, a report out.

A report has plain values (for `--json`) and the text for a person. Heavy imports stay inside the
verbs that need them.
"""

import argparse
import dataclasses
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Group as RichGroup, RenderableType
from rich.table import Table
from rich.text import Text

from envs.soundness import Soundness
from rl.config import RunConfig
from rl.config_loader import load_config

BAD_INPUT = 2
"""Exit code of a verb that found its input wanting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a verb has to say."""

    values: Mapping[str, object]
    """The JSON object of `--json`."""
    text: RenderableType
    """The same for a person."""
    exit_code: int = field(default=0)


def run_train(arguments: argparse.Namespace) -> Report:
    """`limosa train`."""
    from rl.job import Sources, train

    files, overrides = split_inputs(arguments.inputs)
    result = train(load_config(files, overrides), Sources(files=files, overrides=overrides))
    table = _table("environment", "before", "after")
    for name, rate in result.before.items():
        table.add_row(name, f"{rate:.3f}", f"{result.after[name]:.3f}")
    lines = (
        f"{result.steps} steps in {result.wall_seconds:.0f} s, log-prob gap "
        f"{result.logprob_gap_mean:.1e}, recomputed token ratio "
        f"{result.recomputed_token_ratio:.3f}\nrecorded in {result.folder}"
    )
    return Report(values=result.to_json(), text=RichGroup(table, Text(lines)))


def run_warm_start(arguments: argparse.Namespace) -> Report:
    """`limosa warm-start`."""
    config = load_config(*split_inputs(arguments.inputs))
    logging.getLogger().setLevel(logging.INFO)
    logging.getLogger().addHandler(logging.StreamHandler())  # its progress is its log

    from rl.warm_start import warm_start

    report = warm_start(config, arguments.demonstrations)
    values = dataclasses.asdict(report) | {"checkpoint": str(config.model.checkpoint)}
    text = (
        f"held-out loss {report.held_out_loss:.4f}, token accuracy "
        f"{report.held_out_accuracy:.4f}; {report.num_updates} updates in {report.seconds:.0f} s\n"
        f"written to {config.model.checkpoint}"
    )
    return Report(values=values, text=Text(text))


def run_collect(arguments: argparse.Namespace) -> Report:
    """`limosa collect`."""
    from rl.job import Sources, collect

    files, overrides = split_inputs(arguments.inputs)
    result = collect(
        load_config(files, overrides),
        arguments.groups,
        Sources(files=files, overrides=overrides),
    )
    values = result.to_json()
    return Report(values=values, text=_listing(values))


def run_eval(arguments: argparse.Namespace) -> Report:
    """`limosa eval`."""
    from rl.job import Sources, evaluate

    files, overrides = split_inputs(arguments.inputs)
    result = evaluate(
        load_config(files, overrides),
        arguments.checkpoint,
        Sources(files=files, overrides=overrides),
    )
    table = _table("environment", "pass@1", "standard error")
    for name, rate in result.pass_at_1.items():
        error = result.standard_error[name]
        table.add_row(name, *("-" if x is None else f"{x:.3f}" for x in (rate, error)))
    text = RichGroup(table, Text(f"recorded in {result.folder}"))
    return Report(values=result.to_json(), text=text)


def run_compare(arguments: argparse.Namespace) -> Report:
    """`limosa compare`."""
    from rl.comparison import compare

    files, overrides = split_inputs(arguments.inputs)
    comparison = compare(files, overrides, arguments.variants, arguments.seeds)
    table = _table("variant", "trajectories", "mean", "seeds")
    for name, curve in comparison.curves.items():
        for place, (count, mean) in enumerate(zip(curve.trajectories, curve.mean, strict=True)):
            seeds = " ".join(f"{success:.3f}" for success in curve.success[:, place])
            table.add_row("" if place else name, f"{count:.0f}", f"{mean:.3f}", seeds)
    level, budget = comparison.level, comparison.budget
    lines = [f"trajectories to {level:.3f}, where {arguments.variants[0]} ends:"]
    for name, curve in comparison.curves.items():
        needed = curve.trajectories_to(level)
        share = "not reached" if needed is None else f"{needed:.0f} ({needed / budget:.0%})"
        lines.append(f"  {name}  {share}")
    return Report(values=comparison.to_json(), text=RichGroup(table, Text("\n".join(lines))))


def run_show(arguments: argparse.Namespace) -> Report:
    """`limosa show`."""
    from rl import trajectory_view
    from rl.run import Run
    from rollout.tokenizer import Tokenizer

    run = Run.open(arguments.run)
    selection = trajectory_view.Selection(
        step=arguments.step,
        environment=arguments.environment,
        trajectory=arguments.trajectory,
        is_failed_only=arguments.failed,
    )
    recorded = trajectory_view.select_trajectories(run, selection)
    is_whole = arguments.trajectory is not None
    if is_whole:
        tokenizer = Tokenizer.load(run.folder)
        text = RichGroup(*(trajectory_view.render_trajectory(item, tokenizer) for item in recorded))
    else:
        text = trajectory_view.render_list(recorded)
    items = [trajectory_view.trajectory_values(item, is_whole) for item in recorded]
    return Report(values={"run": str(run.folder), "trajectories": items}, text=text)


def run_check(arguments: argparse.Namespace) -> Report:
    """`limosa check`."""
    from rl.check import Verdict, check_run

    checked = check_run(load_config(*split_inputs(arguments.inputs)), arguments.tasks)
    table = _table("", "what", "finding")
    for finding in checked.findings:
        is_good = finding.verdict is Verdict.GOOD
        mark = Text("ok", style="green") if is_good else Text("error", style="bold red")
        table.add_row(mark, Text(finding.subject), Text(finding.text))
    values = {
        "errors": checked.num_errors,
        "findings": [dataclasses.asdict(finding) for finding in checked.findings],
        "environments": {
            name: {"sound": not proof.failures, "badge": proof.badge, **dataclasses.asdict(proof)}
            for name, proof in checked.environments.items()
        },
    }
    text = RichGroup(
        table, *(_soundness(name, proof) for name, proof in checked.environments.items())
    )
    return Report(values=values, text=text, exit_code=BAD_INPUT if checked.num_errors else 0)


def _soundness(name: str, proof: Soundness) -> RenderableType:
    """The checks of one environment, and the badge below."""
    styles = {"passed": "green", "failed": "bold red", "skipped": "dim"}
    table = _table("", "check", "what holds, or where it does not")
    for result in proof.results:
        said = result.rule if result.verdict == "passed" else "; ".join(result.details)
        if result.verdict == "failed":
            said = f"not so: {result.rule} ({said})"
        mark = Text(str(result.verdict), style=styles[result.verdict])
        table.add_row(mark, Text(result.name), Text(said))
    badge = Text(proof.badge, style="bold red" if proof.failures else "bold green")
    return RichGroup(Text(f"\nenvironments.{name}", style="bold"), table, badge)


def run_export(arguments: argparse.Namespace) -> Report:
    """`limosa export`."""
    from rl.export import ExportFormat, export_checkpoint

    form = ExportFormat(arguments.format)
    source = export_checkpoint(arguments.run, arguments.out, arguments.step, form)
    values = {"source": str(source), "out": str(arguments.out), "format": str(form)}
    return Report(values=values, text=Text(f"{source} exported to {arguments.out} for {form}"))


def run_bench(arguments: argparse.Namespace) -> Report:
    """`limosa bench rollout`, `kernels`, `envs` and `credit`.

    Raises:
        ValueError: another subject than `rollout` was given a configuration.
    """
    if arguments.subject != "rollout" and arguments.inputs:
        raise ValueError(f"bench {arguments.subject} takes no configuration: {arguments.inputs[0]}")
    if arguments.subject == "kernels":
        return _bench_kernels()
    if arguments.subject == "envs":
        return _bench_envs()
    if arguments.subject == "credit":
        return _bench_credit(arguments)
    inputs = arguments.inputs or ["configs/quickstart.toml"]
    config: RunConfig = load_config(*split_inputs(inputs))
    from model.checkpoint import require_loadable
    from rl.checkpoint_files import check_checkpoint
    from rollout.bench import bench_rollout

    check_checkpoint(config.model.checkpoint)
    require_loadable(config.model.checkpoint)
    result = bench_rollout(config.model.checkpoint, config.rollout)
    values = dataclasses.asdict(result)
    return Report(values=values, text=_listing(values))


def _bench_kernels() -> Report:
    from rl.kernel_bench import bench_kernels, render

    bench, comparisons = bench_kernels()
    return Report(values=dataclasses.asdict(bench), text=render(bench, comparisons))


def _bench_envs() -> Report:
    from rl.envs_bench import bench_envs, render

    bench = bench_envs(announce=lambda line: sys.stderr.write(f"bench: {line}\n"))
    return Report(values=dataclasses.asdict(bench), text=render(bench))


def _bench_credit(arguments: argparse.Namespace) -> Report:
    from rl.credit_bench.bench import bench_credit

    logging.getLogger().setLevel(logging.INFO)
    logging.getLogger().addHandler(logging.StreamHandler())  # its progress is its log
    bench = bench_credit(arguments.out, is_full=arguments.full)
    return Report(values=bench.values, text=RichGroup(bench.text, Text(f"drawn in {bench.plot}")))


def run_doctor(arguments: argparse.Namespace) -> Report:
    """`limosa doctor`."""
    del arguments
    from rl.doctor import Verdict, examine

    styles = {Verdict.GOOD: "green", Verdict.DOUBTFUL: "yellow", Verdict.BAD: "bold red"}
    facts = examine()
    table = _table("", "what", "found")
    for fact in facts:
        found = fact.value + (f"  ({fact.advice})" if fact.advice else "")
        table.add_row(
            Text(str(fact.verdict), style=styles[fact.verdict]), Text(fact.name), Text(found)
        )
    num_bad = sum(fact.verdict is Verdict.BAD for fact in facts)
    values = {"bad": num_bad, "facts": [dataclasses.asdict(fact) for fact in facts]}
    return Report(values=values, text=table, exit_code=1 if num_bad else 0)


def run_new_env(arguments: argparse.Namespace) -> Report:
    """`limosa new-env`."""
    from rl.new_env import write_package

    written = write_package(arguments.name, Path.cwd(), arguments.checkpoint)
    lines = [*map(str, (path.relative_to(Path.cwd()) for path in written))]
    lines += ["", f"next: cd {arguments.name} && limosa check run.toml"]
    values = {"folder": str(Path.cwd() / arguments.name), "files": [*map(str, written)]}
    return Report(values=values, text=Text("\n".join(lines)))


VERBS: Mapping[str, Callable[[argparse.Namespace], Report]] = {
    "train": run_train,
    "warm-start": run_warm_start,
    "collect": run_collect,
    "eval": run_eval,
    "compare": run_compare,
    "show": run_show,
    "check": run_check,
    "new-env": run_new_env,
    "export": run_export,
    "bench": run_bench,
    "doctor": run_doctor,
}


def split_inputs(inputs: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Tell files from `section.key=value` overrides: only the latter have an equals sign."""
    files = [Path(text) for text in inputs if "=" not in text]
    return files, [text for text in inputs if "=" in text]


def _table(*titles: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in titles:
        table.add_column(title)
    return table


def _listing(values: Mapping[str, object]) -> Table:
    """Two columns: name and value."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in values.items():
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        table.add_row(name, Text(shown))
    return table
