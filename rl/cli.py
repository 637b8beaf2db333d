"""The command `limosa`: verbs, help that teaches, exit codes.

Standard output carries the verb's result and nothing else; with `--json` that is one JSON object.
Progress, logs and errors go to standard error.

    0    done
    1    the system failed; the traceback is in the run folder's log, which the message names
    2    bad input: one line says what and how to mend it
    130  Ctrl-C
"""

import argparse
import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from rl.interrupt import INTERRUPTED
from rl.verbs import BAD_INPUT, VERBS, Report

FAILURE = 1

_CHECKS = """\
  tools        tools have types that a policy can write, a docstring, and a line for each argument
  tasks        tasks can be made, in both splits, each id once
  time         reset, tools and close answer in time
  plays        an episode does not break
  records      tasks and episodes survive JSON and pickling
  determinism  the same task and actions give the same episode
  isolation    an episode does not depend on the one before
  hooks        done, artifacts and reward say the same when asked again
  snapshot     a restored snapshot goes on as the episode did
  malformed    no call that a policy can write breaks the world
  cancel       a cancelled tool ends, and its episode can be closed
  parallel     episodes played at once do not meet
  process      an episode leaves the process as it was
  leaks        many episodes leave no process, file, thread or memory behind
  grader       the grader gives every episode a score in [0, 1], and the same twice
  empty        a policy that does nothing scores 0
  claim        a policy that says it succeeded scores 0
  recital      a policy that only talks about the answer fails
  haste        a policy that calls done at once fails
  garbage      a policy that calls tools without sense fails
  answer list  a policy that gives all answers at once fails
  secrets      the opening does not show what only the grader may know
  gold         an expert scores 1
  tokens       what the policy reads is the same after encoding and decoding
  masks        by tokens an episode is the same, and the policy's tokens alone are trained on"""
"""Name and rule of each check, in the order in which they run."""

_HELP = {
    "train": (
        "improve a policy by reinforcement learning",
        """Start engines, evaluate held-out tasks, then collect, learn and publish step by step, and
evaluate again.

  limosa train configs/quickstart.toml
  limosa train configs/quickstart.toml run.steps=4 environments.retrieval.weight=2

writes a run folder runs/<name>-<date>-<time>: config.json, metrics.jsonl, trajectories/,
checkpoints/, summary.json, log.txt""",
    ),
    "warm-start": (
        "train a new model on the experts' demonstrations",
        """Let the environments' scripted experts play, train a tokenizer on the texts, and train a
new model of the preset on the demonstrations.

  limosa warm-start configs/quickstart.toml

writes the folder model.checkpoint: config.json, model.safetensors, tokenizer.json,
warm_start.json""",
    ),
    "collect": (
        "collect trajectories without learning",
        """Attempt training tasks with the checkpoint of the configuration.

  limosa collect configs/quickstart.toml --groups 4

writes a run folder with trajectories/; `limosa show RUN` prints them""",
    ),
    "eval": (
        "measure pass@1 on held-out tasks",
        """Attempt each held-out task once.

  limosa eval configs/quickstart.toml --checkpoint runs/quickstart-1/checkpoints/step-0024

writes a run folder with the trajectories""",
    ),
    "compare": (
        "run variants of a configuration over several seeds, and compare how fast they learn",
        """Run each variant (overrides, joined by commas) with each seed, one run after the other,
and print held-out success over the trajectories collected, and how many each variant needs for the
success that the first one ends with. Finished runs of the same configuration are not run again: an
interrupted comparison goes on where it was.

  limosa compare configs/quickstart.toml --variants credit.type=rloo credit.type=grpo --seeds 0 1

writes a run folder for each run that is missing""",
    ),
    "show": (
        "print recorded trajectories",
        """List the trajectories of a run, or print one turn by turn: what the policy wrote in
green, tool replies dim, then reward and stop reason.

  limosa show runs/quickstart-1 --step 3 --failed
  limosa show runs/quickstart-1 --trajectory 'retrieval/gallium-year#0'

writes nothing""",
    ),
    "check": (
        "prove a configuration sound before a run pays for it",
        f"""Look at keys and values, the checkpoint's files, tasks, graders, the length of the
openings and memory; then, where a run could start, prove each environment sound: the last line of
each is its badge. Loads no torch.

  limosa check configs/quickstart.toml
  limosa check configs/quickstart.toml environments.guess.use=guess:SPEC

The checks of an environment; one that builds on another is skipped where that one fails:

{_CHECKS}

writes nothing. Keys of --json: errors (a count); findings (subject, text, verdict: good or error);
environments, by name: sound, badge, num_tasks, seconds, results (name, rule, verdict: passed,
failed or skipped, details, seconds)""",
    ),
    "new-env": (
        "write a package with an environment of your own",
        """Write a folder with a small working environment under the name that you give: the class
with its tools, tasks, grader, expert, a test, a configuration and pyproject.toml. It passes
`limosa check` and trains as it is; change it from there.

  limosa new-env my_world
  cd my_world && limosa check run.toml && limosa train run.toml

writes the folder NAME. Keys of --json: folder, files""",
    ),
    "export": (
        "write a checkpoint as a Hugging Face folder that vLLM serves",
        """Verify a checkpoint and copy it under the configuration that its reader wants: vLLM's
own class of the published architecture (kimi-linear), or Limosa and transformers (limosa).

  limosa export runs/quickstart-1 my-policy
  limosa export configs/quickstart-checkpoint my-start --format limosa

writes the new folder: config.json, model.safetensors, tokenizer.json, and for kimi-linear
tokenizer_config.json and generation_config.json""",
    ),
    "bench": (
        "measure the agent loop, the kernels on the CPU, environments, or credit against the truth",
        """rollout: sampled tokens per second of the whole agent loop with instant tools, and of the
same engine with the same sessions and lengths but nothing around it, for a configuration (default:
configs/quickstart.toml). Two minutes.

kernels: ratios on one thread, each next to its bar. The delta rule in chunks over the recurrence,
and its cost per token at 256k over 4k tokens; a training step of the preset tiny over transformers'
kimi_linear of the same sizes; the memory of the log-probs next to that of the logits; whether
decoding equals training bit for bit; every operation over plain PyTorch and torch.compile of it;
the Triton kernels compiled for three GPUs. Ten minutes.

envs: what worlds cost, played by their experts: episodes per second and core; starts of sandboxes,
cold and from a pool; times of graders, and of a search in the largest corpus here; then 200
episodes at once, with their failures and their memory. What needs data that is not here is named
and left out. One minute. Keys of --json: cores, episodes; by environment:
episodes_per_second_per_core, failures, skipped (the reason); grader (by name: p50_ms, p99_ms);
sandbox_backend, sandbox_cold_p50_ms, sandbox_pooled_p50_ms, sandbox_exec_p50_ms; search_corpus,
search_documents, search (p50_ms, p99_ms); parallel_episodes, parallel_failures, parallel_seconds,
parallel_peak_mib

credit: estimators of advantages against exact ones, in small processes of 10 to 1000 turns: how
close they come, and how many trajectories a policy needs with each. 120 cells of one process and
horizon, four minutes on two cores; --full has all processes and estimators, 960 cells, an hour.
Each finished cell is a file in --out, beside the plot curves.svg: after Ctrl-C, one line and exit
code 130, the same command goes on where it was; nothing is computed again until the code changes.
Keys of --json, by environment and estimator: by horizon corr, corr_within, mse, bias, variance,
pivot_auroc, cosine, corr_law (closed form, where there is one) and trajectories_to_90 (null:
failed); over H >= 100 slope_log_h, slope_law. rl/credit_bench/README.md explains them.

  limosa bench rollout --json
  limosa bench kernels
  limosa bench envs
  limosa bench credit --json
  limosa bench credit --full --out runs/credit-bench

writes nothing, but credit its finished figures and a plot of them (--out)""",
    ),
    "doctor": (
        "examine this machine",
        """Python, cores, memory, versions, where the packages come from, the sandbox, Ray.

  limosa doctor

writes nothing""",
    ),
}


NO_USAGE_REPORTS = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Libraries that would report their use over the network are told not to."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all verbs."""
    parser = _Parser(
        prog="limosa",
        description="Agentic reinforcement-learning post-training of tool-using language models.",
        epilog="start here: limosa train configs/quickstart.toml",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    by_name: dict[str, argparse.ArgumentParser] = {}
    for name, (summary, description) in _HELP.items():
        verb = verbs.add_parser(
            name,
            help=summary,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.add_argument(
            "--json", action="store_true", help="print one JSON object last on standard output"
        )
        by_name[name] = verb
    _add_bench(by_name["bench"])
    for name in ("train", "warm-start", "collect", "eval", "check", "compare"):
        _add_inputs(by_name[name], nargs="+")
    by_name["warm-start"].add_argument(
        "--demonstrations",
        type=Path,
        metavar="FOLDER",
        help="keep the demonstrations here, and read those that are there instead of playing",
    )
    by_name["compare"].add_argument(
        "--variants", nargs="+", required=True, metavar="key=value,...", help="the standard first"
    )
    by_name["compare"].add_argument(
        "--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="default: 0 1 2"
    )
    by_name["collect"].add_argument(
        "--groups", type=_positive, default=8, metavar="N", help="tasks to attempt (default: 8)"
    )
    by_name["eval"].add_argument(
        "--checkpoint", type=Path, metavar="FOLDER", help="weights (default: model.checkpoint)"
    )
    by_name["check"].add_argument(
        "--tasks",
        type=_positive,
        default=4,
        metavar="N",
        help="tasks of each split of an environment to play (default: 4)",
    )
    by_name["new-env"].add_argument("name", metavar="NAME", help="small letters, digits and _")
    by_name["new-env"].add_argument(
        "--checkpoint",
        type=Path,
        metavar="FOLDER",
        help="the policy of its run (default: the quickstart's)",
    )
    _add_show(by_name["show"])
    _add_export(by_name["export"])
    return parser


def _add_inputs(verb: argparse.ArgumentParser, **options: object) -> None:
    verb.add_argument(
        "inputs",
        metavar="FILE|key=value",
        help="TOML files, later ones win, then overrides such as run.steps=4",
        **options,  # pyright: ignore[reportArgumentType]  argparse's own overloads
    )


def _add_bench(verb: argparse.ArgumentParser) -> None:
    subjects = ("rollout", "kernels", "envs", "credit")
    verb.add_argument("subject", choices=subjects, help="what to measure")
    _add_inputs(verb, nargs="*")
    verb.add_argument("--full", action="store_true", help="credit: everything, an hour")
    verb.add_argument(
        "--out",
        type=Path,
        default=Path("runs/credit-bench"),
        metavar="FOLDER",
        help="credit: figures are kept here and not computed again (default: runs/credit-bench)",
    )


def _add_show(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("run", type=Path, metavar="RUN", help="run folder")
    verb.add_argument("--step", type=int, metavar="N", help="of update N, or evaluated after it")
    verb.add_argument("--environment", metavar="NAME", help="of one environment")
    verb.add_argument("--trajectory", metavar="ID", help="print those whose id begins so, whole")
    verb.add_argument("--failed", action="store_true", help="those without the full reward")


def _add_export(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("run", type=Path, metavar="RUN", help="run folder, or a checkpoint folder")
    verb.add_argument("out", type=Path, metavar="OUT", help="a folder that does not exist yet")
    verb.add_argument("--step", type=int, metavar="N", help="which checkpoint (default: the last)")
    formats = ("kimi-linear", "limosa")
    verb.add_argument("--format", choices=formats, default=formats[0], help="who reads the folder")


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 up")
    return int(text)


def parse_command(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse a command; files and overrides may also stand after options.

    Raises:
        SystemExit: `--help`, or arguments that do not parse.
    """
    parser = build_parser()
    arguments, rest = parser.parse_known_args(argv)
    if rest and (not hasattr(arguments, "inputs") or any(text.startswith("-") for text in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:  # argparse takes a list of positional arguments only where they stand together
        arguments.inputs += rest
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb and return its exit code.

    Raises:
        SystemExit: `--help`, or arguments that do not parse.
    """
    arguments = parse_command(argv)
    os.environ |= NO_USAGE_REPORTS
    try:
        with _stdout_to_stderr():
            report = VERBS[arguments.verb](arguments)
    except KeyboardInterrupt as error:
        _complain("; ".join(["interrupted", *getattr(error, "__notes__", [])]))
        return INTERRUPTED
    except Exception as error:  # the one place where every failure becomes an exit code
        return _explain(error)
    _print_report(report, arguments.json)
    return report.exit_code


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Send what libraries and their subprocesses print to standard error."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


def _print_report(report: Report, as_json: bool) -> None:
    if as_json:
        print(json.dumps(report.values))
    else:
        # A pipe has no width: wide enough that no cell is folded.
        Console(width=None if sys.stdout.isatty() else 200).print(report.text)


def _explain(error: Exception) -> int:
    """Print one line about an error, and return the exit code."""
    from rl.job import is_about_input

    line = " ".join(str(error).split()) or type(error).__name__
    if is_about_input(error):
        _complain(line)
        return BAD_INPUT
    notes = getattr(error, "__notes__", [])
    if not notes:  # no run folder has it
        traceback.print_exception(error)
    _complain("; ".join([f"{type(error).__name__}: {line}", *notes]))
    return FAILURE


def _complain(line: str) -> None:
    print(f"limosa: {line}", file=sys.stderr)
