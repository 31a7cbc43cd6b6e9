"""benchmarks/cuda_kernels.py: what it reads from ptxas and PTX, occupancy, and that its table names every kernel."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from collc.resources import resource_dir

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "cuda_kernels.py"
TABLE = ROOT / "docs" / "measurements" / "cuda-kernels.md"

pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="benchmarks are in the source tree alone")

LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'collc_ll_f32' for 'sm_90'
ptxas info    : Function properties for collc_ll_f32
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 68 registers, used 1 barriers, 16 bytes smem
ptxas info    : Compiling entry function 'collc_simple_i8' for 'sm_90'
ptxas info    : Function properties for collc_simple_i8
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 8 bytes lmem
"""
PTX = """
.visible .entry collc_ll_f32(
  ld.relaxed.sys.global.v2.u64 {%rd1, %rd2}, [%rd3];
  ld.global.v2.u32 {%r1, %r2}, [%rd3];
  st.relaxed.sys.global.v2.u64 [%rd3], {%rd1, %rd2};
.visible .entry collc_simple_i8(
  ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd3];
"""


# Two loads before the first is needed, then one whose address comes from another load; of a poll that a loop is around.
LOADS = """
        /*0000*/                   LDG.E.128.STRONG.SYS R16, desc[UR8][R4.64] ;
        /*0010*/              @!P0 LDG.E.128.STRONG.SYS R20, desc[UR8][R8.64] ;
        /*0020*/                   IADD3 R0, R1, R2, RZ ;
        /*0030*/                   ISETP.NE.AND P0, PT, R23, R7, PT ;
.L_x_0:
        /*0040*/                   LDG.E.128.STRONG.SYS R4, desc[UR8][R12.64] ;
        /*0050*/                   LDG.E.128.STRONG.SYS R8, desc[UR8][R4.64] ;
        /*0060*/                   ISETP.NE.AND P0, PT, R8, R7, PT ;
        /*0070*/               @P0 BRA `(.L_x_0) ;
"""
# A loop of two steps with a poll and a copy in it, behind one that runs no step.
STEPS = """
.L_x_0:
        /*0000*/                   IADD3 R0, R1, R2, RZ ;
        /*0010*/               @P0 BRA `(.L_x_0) ;
.L_x_1:
        /*0020*/                   IADD3 R0, R1, R2, RZ ;
.L_x_2:
        /*0030*/                   LDG.E.64.STRONG.SYS R4, desc[UR8][R12.64] ;
        /*0040*/               @P0 BRA `(.L_x_2) ;
        /*0050*/                   IADD3 R0, R1, R2, RZ ;
        /*0060*/                   IADD3 R0, R1, R2, RZ ;
        /*0070*/               @P0 BRA `(.L_x_1) ;
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cuda_kernels", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["cuda_kernels"] = module
    sys.path.insert(0, str(SCRIPT.parent))  # as for a script
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(SCRIPT.parent))
    return module


def test_it_reads_what_ptxas_says(script: ModuleType) -> None:
    found = script.parse(LOG)
    assert found["collc_ll_f32"] == script.Figures(68, 0, 0, 16, 0)
    assert found["collc_simple_i8"] == script.Figures(255, 8, 16, 0, 8)


def test_it_counts_wide_accesses(script: ModuleType) -> None:
    assert script.widths(PTX) == {"collc_ll_f32": (1, 1), "collc_simple_i8": (1, 0)}


def test_it_counts_loads_that_wait_for_none_of_them(script: ModuleType) -> None:
    assert script.in_flight(LOADS) == [2, 1, 1]


def test_it_counts_what_loops_over_steps_do_themselves(script: ModuleType) -> None:
    # By tables, what runs the steps is the loop within that over iterations.
    assert script.per_step(STEPS) == [2]
    once_more = STEPS.replace(".L_x_", ".L_y_").replace(".L_y_", ".L_x_9")
    assert script.per_step(STEPS + once_more) == [4, 4]


def test_the_page_says_the_shared_memory_that_occupancy_is_computed_with(script: ModuleType) -> None:
    told = re.search(r"Shared memory is (\d+) bytes, (\d+) per share", TABLE.read_text(encoding="utf-8"))
    assert told
    fixed, share = map(int, told.groups())
    assert fixed == script.BASE
    assert fixed + share * script.SHARES + 16 * script.STEPS + 72 * script.ENDS == script.SHARED


@pytest.mark.parametrize(
    ("registers", "architecture", "blocks"),
    # By registers: 64 for each of 512 threads leave two blocks, 128 one, 129 none. Then by threads.
    [(64, "90", 2), (65, "90", 1), (128, "90", 1), (129, "90", 0), (32, "75", 2), (32, "120", 3), (16, "80", 4)],
)
def test_occupancy_is_what_registers_and_threads_leave(
    script: ModuleType, registers: int, architecture: str, blocks: int
) -> None:
    assert script.Figures(registers, 0, 0, 0, 0).blocks(architecture, 4096) == blocks


def test_the_table_holds_every_kernel_and_no_spill() -> None:
    by_kernel = TABLE.read_text().partition("## By kernel\n")[2].partition("\n## ")[0]
    rows = [
        line.split("|")[1:-1]
        for line in by_kernel.splitlines()
        if re.match(r"\| ((?:simple|ll|ll128)_\w+|exchange) \|", line)
    ]
    layout = (resource_dir("templates") / "include" / "collc" / "cuda" / "layout.h").read_text()
    types = re.findall(r"X\(Y, (\w+), ", layout)
    prefixes = ["simple", "ll", "ll128"]
    kernels = ["exchange", *(f"{p}_{t}" for p in prefixes for t in types)]
    assert sorted(row[0].strip() for row in rows) == sorted(kernels)
    assert {(row[-4].strip(), row[-3].strip()) for row in rows} == {("0", "0")}
