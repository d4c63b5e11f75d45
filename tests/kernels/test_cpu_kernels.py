"""Tests the CPU kernels: instruction sets, numbers of threads, and the elementwise functions.

The instruction set and the number of threads are fixed when a process starts. So tests start
`cpu_kernel_runs` as a program.
"""

import functools
import itertools
import json
import os
import pathlib
import platform
import subprocess
from typing import Any

import fresh_process
import pytest
from cpu_kernel_runs import NUM_CASES
from cxx import ROOT, compiled

from cudnn_rnn_tf import native

# Programs that run no cells are compiled with one; a compiler would take minutes for all.
ONE_CELL = ("-DAllCells()=CellList<RnnRelu>()",)
ONE_CELL += ("-Og",)  # What the compiler saves is more than what these programs lose.


def instruction_sets() -> list[str]:
    """Returns the instruction sets that this processor can run; each needs those before it."""
    features = native.info()["cpu_features"]
    needed = {
        "avx2": ("avx2", "fma"),
        "avx512": ("avx512f", "avx512dq"),
        "avx512bf16": ("avx512bf16",),
        "amx": ("amx",),
    }

    def has(isa: str) -> bool:
        return all(features.get(feature) for feature in needed[isa])

    return ["baseline", *itertools.takewhile(has, needed)]


def run_program(*arguments: str, isa: str) -> dict[str, Any]:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "CUDNN_RNN_TF_CPU_ISA": isa}
    program = ROOT / "tests" / "cpu_kernel_runs.py"
    process = fresh_process.run([program, *arguments], environment, timeout=300)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("isa", "counts"),
    [
        (instruction_sets()[-1], (5, 16)),
        pytest.param("avx2", (2,), marks=pytest.mark.thorough),
        pytest.param("baseline", (2, 5, 16), marks=pytest.mark.thorough),
    ],
)
def test_results_do_not_depend_on_the_number_of_threads(isa, counts):
    """Each process has another number of threads, of which some share a product or a step."""
    if isa not in instruction_sets():
        pytest.skip(f"this processor has no {isa}")
    runs = {threads: run_program("digest", str(threads), isa=isa) for threads in (1, *counts)}
    for threads, run in runs.items():
        assert run["threads"] == threads
        assert run["digests"] == runs[1]["digests"]


@functools.cache
def accuracy() -> dict[str, dict[str, Any]]:
    return run_program("accuracy", *instruction_sets(), isa="none")


def check_program(executable: pathlib.Path) -> None:
    completed = subprocess.run([executable], capture_output=True, text=True, timeout=300)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert completed.stdout == "well\n"


def test_arithmetic_holds(tmp_path):
    """For all numbers, also NaN, whose bits overflow."""
    sanitize = ("-fsanitize=undefined", "-fno-sanitize-recover=all")
    check_program(compiled(tmp_path, "numbers_in_cpu_kernels", [], *sanitize))


def test_many_threads_share_the_work(tmp_path):
    """Every piece of work is done once and in order, with any number of threads."""
    names = ("division", "packed_rows", "product", "right_matrix", "schedule")
    names += ("simd_dispatch", "simd_kernels")
    sources = [*(f"kernels/cpu/{name}.cc" for name in names), "kernels/rnn_spec.cc"]
    options = ("-DCRNN_SIMD_NAME=baseline", "-DCRNN_SIMD_BYTES=16", *ONE_CELL)
    executable = compiled(tmp_path, "work_of_many_threads", sources, *options)
    check_program(executable)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the instructions are those of x86-64")
def test_products_for_processors_that_are_not_here(tmp_path):
    """The code for AVX-512 and AMX multiplies matrices of any shape, with faked instructions."""
    names = ("product", "right_matrix", "schedule", "simd_kernels", "transposed_products")
    sources = [f"kernels/cpu/{name}.cc" for name in names]
    options = ("-DCRNN_SIMD_NAME=avx512bf16", "-DCRNN_SIMD_BYTES=64", "-Wno-psabi", *ONE_CELL)
    options += ("-include", f"{ROOT}/tests/programs/fake_wide_instructions.h")
    executable = compiled(tmp_path, "products_of_matrices", sources, *options, "-fsanitize=address")
    check_program(executable)


# One worker of pytest runs all of these tests, so the program runs once.
ALL_SETS = pytest.mark.parametrize(
    "isa",
    [pytest.param(isa, marks=pytest.mark.xdist_group("accuracy")) for isa in instruction_sets()],
)


@ALL_SETS
@pytest.mark.slow
def test_instruction_set_agrees_with_reference(isa):
    measured = accuracy()[isa]
    assert measured["isa"] == isa
    assert measured["failures"] == []
    assert measured["num_comparisons"] == 4 * (NUM_CASES + 14)


@ALL_SETS
@pytest.mark.slow
@pytest.mark.parametrize("function, bound", [("sigmoid", 2.5), ("tanh", 2.0)])
def test_elementwise_functions(function, bound, isa):
    """The bounds are in units in the last place of float32; 2.1 and 1.9 were measured."""
    measured = accuracy()[isa][function]
    assert measured["num_arguments"] > 4e6
    assert measured["ulps"] <= bound
    assert (
        measured["specials"]
        == {
            "sigmoid": {"nan": "nan", "inf": 1.0, "-inf": "tiny", "0.0": 0.5, "3e+38": 1.0},
            "tanh": {"nan": "nan", "inf": 1.0, "-inf": -1.0, "0.0": "tiny", "3e+38": 1.0},
        }[function]
    )


def test_unknown_instruction_set_is_ignored():
    program = "from cudnn_rnn_tf import native; print(native.info()['cpu_isa'])"
    printed = fresh_process.run_program(program, CUDNN_RNN_TF_CPU_ISA="mmx")
    assert printed.split()[-1] == instruction_sets()[-1]
