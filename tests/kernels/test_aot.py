"""The compiler's figures are read right: a lean kernel passes, one that spills is reported."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest
import triton
import triton.language as tl

from kernels.aot import (
    TARGETS,
    AotCase,
    KernelReport,
    compile_case,
    discover,
    format_table,
    summarise,
)


@triton.jit
def scale(x, y, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, factor * tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def hoard(x, y, num_steps, SIZE: tl.constexpr):
    # An accumulator of more numbers than the threads of one warp have registers.
    rows = tl.arange(0, SIZE)[:, None]
    columns = tl.arange(0, SIZE)[None, :]
    inner = tl.arange(0, 16)
    total = tl.zeros((SIZE, SIZE), tl.float32)
    for step in range(num_steps):
        left = tl.load(x + step * SIZE * 16 + rows * 16 + inner[None, :])
        right = tl.load(x + step * SIZE * 16 + columns * 16 + inner[:, None])
        total += tl.dot(left, right)
    tl.store(y + rows * SIZE + columns, total)


@triton.jit
def add(xs, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(xs[0] + at, mask=at < n) + tl.load(xs[1] + at, mask=at < n), at < n)


def case_of(kernel, signature, constexprs, **options):
    defaults = {"num_warps": 4, "num_stages": 2, "chosen": True}
    return AotCase(
        name="case", kernel=kernel, signature=signature, constexprs=constexprs, **defaults | options
    )


LEAN = case_of(
    scale,
    {"x": "*bf16", "y": "*fp32", "n": "i32", "factor": "fp32"},
    {"BLOCK": 256},
    divisible_by_16=("x", "y"),
)


def spilling_case(target):
    # An AMD warp has 64 threads of 512 registers, an NVIDIA one 32 of 255.
    size = 256 if target == "gfx942" else 128
    signature = {"x": "*bf16", "y": "*fp32", "num_steps": "i32"}
    return case_of(hoard, signature, {"SIZE": size}, num_warps=1)


@pytest.mark.parametrize("target", TARGETS)
def test_a_lean_kernel_compiles_for_every_target_without_spills(target):
    report = compile_case("op", LEAN, TARGETS[target])
    assert report.problem == ""
    assert 0 < report.registers < 64
    assert report.spill_bytes == 0


def test_a_tuple_of_pointers_is_typed_and_aligned_member_by_member():
    signature = {"xs": ("*bf16", "*bf16"), "y": "*bf16", "n": "i32"}
    case = case_of(add, signature, {"BLOCK": 1024}, divisible_by_16=("xs", "y", "n"))
    report = compile_case("op", case, TARGETS["sm_90"])
    assert report.problem == ""
    apart = compile_case("op", replace(case, divisible_by_16=("y", "n")), TARGETS["sm_90"])
    assert report.registers < apart.registers, "aligned loads take one address for many numbers"


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_a_kernel_that_spills_is_a_problem_where_it_is_chosen(target):
    report = compile_case("op", spilling_case(target), TARGETS[target])
    assert report.spill_bytes > 0
    assert "spills" in report.problem
    assert "FAILED op case" in format_table([report, *others(report)])
    assert summarise([report])[target] == {"kernels": 1, "spills": 1}


def others(report):
    return [
        KernelReport(op="op", case="case", target=target, chosen=True)
        for target in TARGETS
        if target != report.target
    ]


def test_a_candidate_may_spill_but_must_compile():
    spilling = KernelReport(op="op", case="c", target="sm_90", chosen=False, spill_bytes=8)
    broken = KernelReport(op="op", case="c", target="sm_90", chosen=False, error="no such type")
    assert spilling.problem == ""
    assert broken.problem == "no such type"


def test_more_shared_memory_than_the_device_has_is_a_problem():
    report = KernelReport(op="op", case="c", target="gfx942", chosen=True, shared_bytes=70_000)
    assert "shared memory" in report.problem


def test_a_kernel_that_does_not_compile_is_reported_with_the_reason():
    wrong = case_of(scale, {"x": "fp32", "y": "*fp32", "n": "i32", "factor": "fp32"}, {"BLOCK": 16})
    report = compile_case("op", wrong, TARGETS["sm_90"])
    assert report.error
    assert report.problem == report.error


@pytest.mark.parametrize(
    "signature",
    [
        {"x": "*fp32", "y": "*fp32", "n": "i32"},
        {"x": "*fp32", "y": "*fp32", "n": "i32", "factor": "fp32", "BLOCK": "i32"},
    ],
)
def test_a_case_must_type_every_argument_once(signature):
    with pytest.raises(ValueError, match=r"factor|BLOCK"):
        compile_case("op", case_of(scale, signature, {"BLOCK": 16}), TARGETS["sm_90"])


def test_a_kernel_that_a_launch_starts_is_compiled_ahead_of_time():
    compiled = {case.kernel.fn.__name__ for case in discover().values()}
    assert jit_entry_points() - compiled == set()


def jit_entry_points():
    """Names of the functions under `triton.jit` that no other such function calls."""
    defined, called = set(), set()
    for path in (Path(__file__).parents[2] / "kernels").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef):
                continue
            if any(ast.unparse(decorator) == "triton.jit" for decorator in node.decorator_list):
                defined.add(node.name)
                called |= {
                    call.func.id
                    for call in ast.walk(node)
                    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
                }
    return defined - called


def test_no_test_file_turns_the_interpreter_on_for_the_others():
    folder = Path(__file__).parent
    setting = [
        path.name
        for path in folder.glob("test_triton_*.py")
        if "os.environ[" in path.read_text() or "setenv" in path.read_text()
    ]
    assert setting == []
