"""Ahead-of-time compilation: every Triton kernel for every target, on a machine without a GPU.

A Triton file names what it launches in a function `aot_cases()`: each kernel with representative
argument types and every configuration that may be chosen. Here they are compiled, and the
assembler's figures read: registers, shared memory, spills. A configuration marked `chosen` that
spills, or that needs more shared memory than the device has, is a failure; a candidate that does
is a line in the table.

    python -m kernels.aot          a table; exit code 1 if a case fails
    python -m kernels.aot --json   the reports as one JSON list
"""

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

WORKERS = 2
"""Processes that compile at once."""
REGISTER_BYTES = 4
"""Width of a register of one thread, in which AMD's compiler counts what it spills."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AotCase:
    """One kernel in one configuration, with the argument types of a representative call."""

    name: str
    """Unique within the op; says kernel, shape and configuration."""
    kernel: object
    """The function that `triton.jit` returned."""
    signature: Mapping[str, str | tuple[str, ...]]
    """Type of each run-time argument in Triton's words: `*bf16`, `*fp32`, `i32`, `fp32`. A tuple of
    pointers has a tuple of types."""
    constexprs: Mapping[str, object]
    """Value of each compile-time argument."""
    num_warps: int
    """Warps per program."""
    num_stages: int
    """Depth of the software pipeline."""
    chosen: bool
    """Whether a launch uses this configuration by default: then it must neither spill nor ask for
    more shared memory than there is."""
    divisible_by_16: Sequence[str] = ()
    """Pointers aligned to 16 bytes, tuples of such, and integers divisible by 16, as a launch would
    find them."""
    enable_fp_fusion: bool = True
    """Whether a product and a sum may become one fused operation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A device to compile for."""

    name: str
    """As its vendor calls it."""
    backend: str
    """Triton's backend: `cuda` or `hip`."""
    arch: int | str
    """Architecture in the backend's form."""
    warp_size: int
    """Threads per warp."""
    max_shared_bytes: int
    """Shared memory that one program may have."""


TARGETS = {
    target.name: target
    for target in (
        Target(name="sm_90", backend="cuda", arch=90, warp_size=32, max_shared_bytes=232_448),
        Target(name="sm_100", backend="cuda", arch=100, warp_size=32, max_shared_bytes=232_448),
        Target(name="gfx942", backend="hip", arch="gfx942", warp_size=64, max_shared_bytes=65_536),
    )
}
"""Hopper, Blackwell and MI300, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelReport:
    """What the compiler made of one case for one target."""

    op: str
    """Folder of the kernel."""
    case: str
    """`AotCase.name`."""
    target: str
    """`Target.name`."""
    chosen: bool
    """`AotCase.chosen`."""
    registers: int = 0
    """Vector registers per thread."""
    shared_bytes: int = 0
    """Shared memory per program."""
    spill_bytes: int = 0
    """Registers written out to memory, bytes per thread, stores only."""
    error: str = ""
    """Why it did not compile; the figures are 0 then."""

    @property
    def problem(self) -> str:
        """Why this report fails the check, or nothing."""
        if self.error:
            return self.error
        if self.chosen and self.spill_bytes:
            return f"spills {self.spill_bytes} bytes per thread"
        limit = TARGETS[self.target].max_shared_bytes
        if self.chosen and self.shared_bytes > limit:
            return f"needs {self.shared_bytes} bytes of shared memory, there are {limit}"
        return ""


def triton_modules() -> dict[str, Sequence[str]]:
    """Return the modules of each op that define `aot_cases`, found by their text, not imported."""
    found: dict[str, Sequence[str]] = {}
    for folder in sorted(Path(__file__).parent.iterdir()):
        names = [
            f"kernels.{folder.name}.{path.stem}"
            for path in sorted(folder.glob("*.py"))
            if re.search(r"^def aot_cases\(", path.read_text(encoding="utf-8"), re.MULTILINE)
        ]
        if names:
            found[folder.name] = names
    return found


@cache
def discover() -> Mapping[tuple[str, str], AotCase]:
    """Collect every op's cases, by op and name of the case.

    Raises:
        ValueError: two cases of an op share a name, or Triton runs as an interpreter.
    """
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise ValueError("TRITON_INTERPRET=1 is set: nothing compiles in the interpreter; unset it")
    cases: dict[tuple[str, str], AotCase] = {}
    for op, modules in triton_modules().items():
        for module in modules:
            for case in importlib.import_module(module).aot_cases():
                if (op, case.name) in cases:
                    raise ValueError(f"{module}: a second case is named {case.name!r}")
                cases[op, case.name] = case
    return cases


def compile_case(op: str, case: AotCase, target: Target) -> KernelReport:
    """Compile one case for one target and read the assembler's figures.

    A case that does not compile is a report with `error`, so that the others still run.

    Raises:
        ValueError: the case does not type each argument of its kernel exactly once.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(
        fn=case.kernel,
        signature=_full_signature(case),
        constexprs=dict(case.constexprs),
        attrs=_alignments(case),
    )
    options = {
        "num_warps": case.num_warps,
        "num_stages": case.num_stages,
        "enable_fp_fusion": case.enable_fp_fusion,
    }
    report = {"op": op, "case": case.name, "target": target.name, "chosen": case.chosen}
    try:
        compiled: Any = triton.compile(
            source,
            target=GPUTarget(target.backend, target.arch, target.warp_size),
            options=options,
        )
        figures = _nvidia_figures if target.backend == "cuda" else _amd_figures
        registers, spill_bytes = figures(compiled.asm, target)
    except Exception as error:  # the compiler's errors share no base class
        reason = str(error).strip() or type(error).__name__
        return KernelReport(**report, error=reason.splitlines()[-1])
    return KernelReport(
        **report,
        registers=registers,
        spill_bytes=spill_bytes,
        shared_bytes=compiled.metadata.shared,
    )


def _full_signature(case: AotCase) -> dict[str, str | tuple[str, ...]]:
    """Type all arguments in the kernel's order."""
    names: list[str] = list(getattr(case.kernel, "arg_names", ()))
    typed = [*case.signature, *case.constexprs]
    if sorted(typed) != sorted(names):
        wrong = sorted(set(typed) ^ set(names)) or sorted(typed)
        raise ValueError(
            f"{case.name}: each argument needs a type or a value, once: {', '.join(wrong)}"
        )
    return {name: case.signature.get(name, "constexpr") for name in names}


def _alignments(case: AotCase) -> dict[tuple[int, ...], list[list[object]]]:
    names: list[str] = list(getattr(case.kernel, "arg_names", ()))
    paths: list[tuple[int, ...]] = []
    for name in case.divisible_by_16:
        place, type_ = names.index(name), case.signature[name]
        members = [()] if isinstance(type_, str) else [(i,) for i in range(len(type_))]
        paths.extend((place, *member) for member in members)
    return {path: [["tt.divisibility", 16]] for path in paths}


def _nvidia_figures(asm: Mapping[str, Any], target: Target) -> tuple[int, int]:
    """Registers and spilled bytes per thread, from the assembler that reads this PTX.

    Triton ships two; the older one refuses the PTX version written for sm_90 and later.
    """
    from triton.backends import nvidia

    assembler = Path(nvidia.__path__[0]) / "bin" / "ptxas-blackwell"
    with tempfile.TemporaryDirectory(prefix="limosa-aot-") as folder:
        ptx = Path(folder) / "kernel.ptx"
        ptx.write_text(asm["ptx"], encoding="utf-8")
        told = subprocess.run(
            [
                assembler,
                "-v",
                f"--gpu-name=sm_{target.arch}a",
                ptx,
                "-o",
                ptx.with_suffix(".cubin"),
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stderr
    return _number(r"Used (\d+) registers", told), _number(r"(\d+) bytes spill stores", told)


def _amd_figures(asm: Mapping[str, Any], target: Target) -> tuple[int, int]:
    """Registers and spilled bytes per thread, from the comments in the assembly."""
    del target
    text = asm["amdgcn"]
    registers = _number(r"\.vgpr_count:\s+(\d+)", text)
    return registers, REGISTER_BYTES * _number(r"\.vgpr_spill_count:\s+(\d+)", text)


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    if match is None:
        raise ValueError(f"the assembler did not say {pattern}")
    return int(match.group(1))


def _compile_named(job: tuple[str, str, str]) -> KernelReport:
    """Compile in a worker: kernels do not travel between processes, their names do."""
    op, name, target = job
    return compile_case(op, discover()[op, name], TARGETS[target])


def compile_all() -> list[KernelReport]:
    """Compile every case for every target, with progress on standard error."""
    jobs = [(op, name, target) for op, name in discover() for target in TARGETS]
    reports: list[KernelReport] = []
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        for report in pool.map(_compile_named, jobs):
            reports.append(report)
            if len(reports) % 20 == 0 or len(reports) == len(jobs):
                sys.stderr.write(f"compiled {len(reports)} of {len(jobs)}\n")
    return reports


def summarise(reports: Sequence[KernelReport]) -> dict[str, dict[str, int]]:
    """Count, per target, the cases compiled and the chosen ones among them that spill."""
    return {
        target: {
            "kernels": sum(report.target == target and not report.error for report in reports),
            "spills": sum(
                report.target == target and report.chosen and report.spill_bytes > 0
                for report in reports
            ),
        }
        for target in TARGETS
    }


def format_table(reports: Sequence[KernelReport]) -> str:
    """Lay the reports out, one line per case, three columns per target."""
    by_case: dict[tuple[str, str], dict[str, KernelReport]] = {}
    for report in reports:
        by_case.setdefault((report.op, report.case), {})[report.target] = report
    width = max([len(f"{op} {case}") for op, case in by_case], default=0) + 2
    lines = [
        "registers / shared bytes / spilled bytes per thread; * is what a launch chooses",
        " " * width + "".join(f"{target:>20}" for target in TARGETS),
    ]
    for (op, case), by_target in by_case.items():
        mark = "*" if any(report.chosen for report in by_target.values()) else " "
        cells = (_cell(by_target[target]) for target in TARGETS)
        lines.append(f"{f'{mark}{op} {case}':<{width}}" + "".join(f"{cell:>20}" for cell in cells))
    problems = [
        f"FAILED {report.op} {report.case} on {report.target}: {report.problem}"
        for report in reports
        if report.problem
    ]
    return "\n".join([*lines, *problems])


def _cell(report: KernelReport) -> str:
    if report.error:
        return "error"
    return f"{report.registers} / {report.shared_bytes} / {report.spill_bytes}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile everything, write the table or JSON, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m kernels.aot", description=__doc__)
    parser.add_argument("--json", action="store_true", help="write the reports as one JSON list")
    as_json: bool = parser.parse_args(arguments).json
    reports = compile_all()
    text = json.dumps([asdict(item) for item in reports]) if as_json else format_table(reports)
    sys.stdout.write(text + "\n")
    return 1 if any(report.problem for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
