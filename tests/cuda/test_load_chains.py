"""No chains of dependent loads at the start of a block: its tables are asked for at once, as the machine code shows.

Such chains change no result, only when it comes, so no run notices them; without a GPU no clock does, either.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.sass import in_flight, load_rounds

from collc import resources
from collc.build import cuda, nvcc

needs_nvcc = pytest.mark.skipif(nvcc.nvcc_path() is None, reason="no nvcc on PATH, in CUDA_HOME or a wheel")

# One round for the references, one for the data that they name. Other data of a block come with the references.
MOST = 2
KERNELS = {"simple": "Simple", "direct": "Direct", "ll": "LL", "ll128": "LL128"}
SOURCE = (
    '#include "collc/cuda/direct.h"\n#include "collc/cuda/executor.h"\nusing namespace collc::cuda;\n'
    "#define KERNEL(name, protocol) COLLC_KERNEL(kMaxThreads) collc_##name(COLLC_KERNEL_ARGUMENT(Launch) launch) "
    "{ run_block<float, protocol<float>>(launch); }\n"
) + "\n".join(f"KERNEL({name}, {protocol})" for name, protocol in KERNELS.items())
PAIRS = [(virtual, real) for virtual, reals in cuda.SASS.items() for real in reals if virtual not in cuda.OLD]
# Changes that would bring a chain of loads back: text of executor.h -> replacement.
ROW = "  char **slots = reinterpret_cast<char **>(shared_memory());\n"
FAULTS = {
    "a block asks first whether it has steps": (
        ROW,
        "  if (channel_row(state, launch, channel)->nsteps == 0) return;\n" + ROW,
    ),
    "the place of references is looked up": (
        "  if (launch.cached != 0) tables",
        "  tables.refs += state.nlanes;\n  if (launch.cached != 0) tables",
    ),
}


def kernels_of(cubin: Path) -> dict[str, str]:
    tool = shutil.which(nvcc.find_nvcc().tool("nvdisasm"))
    if tool is None:
        pytest.skip("no nvdisasm (pip: nvidia-cuda-nvdisasm)")
    text = subprocess.run([tool, "-c", str(cubin)], capture_output=True, text=True, check=True, timeout=100).stdout
    parts = re.split(r"^\s*\.section\s+\.text\.collc_(\w+),", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@needs_nvcc
@pytest.mark.nvcc
@pytest.mark.parametrize(("virtual", "real"), PAIRS)
@pytest.mark.slow_for("75-75", "80-100")
def test_a_block_waits_for_two_loads_before_its_first_step(virtual: str, real: str) -> None:
    tool = nvcc.find_nvcc()
    kernels = kernels_of(cuda.make_cubin(tool, cuda.make_ptx(tool, virtual, SOURCE), real))
    assert kernels.keys() == KERNELS.keys()
    for name, body in kernels.items():
        rounds = load_rounds(body)
        # A row, a reference, an end of 64 bytes, a step, a share: whoever finds none has read nothing.
        assert len(rounds) >= 8, name
        assert max(rounds) == MOST, (name, rounds)


@needs_nvcc
@pytest.mark.nvcc
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.slow_for("a block asks first whether it has steps")
def test_a_chain_that_comes_back_is_found(fault: str, tmp_path: Path) -> None:
    right, wrong = FAULTS[fault]
    include = tmp_path / "include"
    shutil.copytree(Path(str(resources.resource_dir("templates"))) / "include", include)
    header = include / "collc" / "cuda" / "executor.h"
    text = header.read_text()
    assert text.count(right) == 1
    header.write_text(text.replace(right, wrong))
    (tmp_path / "device.cu").write_text(SOURCE)
    options = ["-std=c++17", "-O3", f"-I{include}", "-cubin", "-arch=sm_90", str(tmp_path / "device.cu")]
    command = [nvcc.find_nvcc().path, *options, "-o", str(tmp_path / "device.cubin")]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=200)
    for name, body in kernels_of(tmp_path / "device.cubin").items():
        assert max(load_rounds(body)) > MOST, name


def code(*lines: str) -> str:
    return "".join(f"{line}\n" if line.endswith(":") else f"        /*0010*/   {line} ;\n" for line in lines)


END = ("BAR.SYNC.DEFER_BLOCKING 0x0", "LDG.E R40, desc[UR6][R30.64]", "EXIT")


@pytest.mark.parametrize(
    ("lines", "rounds"),
    [
        # Two at once; behind the barrier nothing counts.
        (("LDG.E R4, desc[UR6][R2.64]", "LD.E.64 R6, desc[UR6][R2.64+0x8]"), [1, 1]),
        # An address that was loaded, in the second of two registers.
        (("LDG.E.64 R4, desc[UR6][R2.64]", "IADD3 R5, R5, R9, RZ", "LDG.E R8, desc[UR6][R2.64+0x8]"), [1, 2]),
        # A branch on what was loaded.
        (
            (
                "LDG.E R4, desc[UR6][R2.64]",
                "ISETP.NE.AND P0, PT, R4, RZ, PT",
                "@P0 EXIT",
                "LDG.E R8, desc[UR6][R2.64+0x8]",
            ),
            [1, 2],
        ),
        # Warps that skip a loop do not wait for its loads.
        (
            (
                "@P0 BRA `(.L_x_2)",
                ".L_x_1:",
                "LDG.E R4, desc[UR6][R2.64]",
                "IADD3 R2, R4, R2, RZ",
                "@P1 BRA `(.L_x_1)",
                ".L_x_2:",
                "LDG.E R8, desc[UR6][R10.64]",
            ),
            [1, 1],
        ),
        # They wait where the ways have met, if what comes there was loaded before.
        (
            (
                "LDG.E R4, desc[UR6][R2.64]",
                "@P0 BRA `(.L_x_2)",
                "IADD3 R5, R4, R2, RZ",
                ".L_x_2:",
                "IADD3 R6, R4, R2, RZ",
                "LDG.E R8, desc[UR6][R10.64]",
            ),
            [1, 2],
        ),
    ],
)
def test_it_counts_what_a_warp_waits_for(lines: tuple[str, ...], rounds: list[int]) -> None:
    assert load_rounds(code(*lines, *END)) == rounds


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


def test_loads_in_flight_are_those_that_wait_for_none_of_them() -> None:
    assert in_flight(LOADS) == [2, 1, 1]
