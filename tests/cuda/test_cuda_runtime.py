"""The host side of the CUDA target against a driver of our own, whose kernels run on the CPU emulator."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from cuda_emulator import FLAGS, compile_unit, link
from support import elf
from support.libraries import ODD

from collc import compiler
from collc.build import compile as build
from collc.build.cache import cache_dir, content_key
from collc.build.compile import Library
from collc.build.cuda import DeviceCode
from collc.build.fatbin import Image
from collc.choose import library as choice
from collc.choose.strategy import Strategy, strategy_for
from collc.codegen.specialise import Written
from collc.compiler import CompileRequest, compile_topology
from collc.options import CUDA, TARGETS, Target, TargetKind
from collc.topology.model import PlanGraph

HERE = Path(__file__).parent
REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")


# Groups of calls: collective, type, operation, root, count, in place.
Script = Sequence[Sequence[Sequence[object]]]


# Types of kernels in drivers that count or have steps written out, whose tests have sums of floats and moves.
OF_FEW = "X(Y, u32, uint32_t) X(Y, f32, float)"


@cache
def mock_driver(counters: bool = False, fault: str | None = None, code: Written | None = None) -> Path:
    """The folder of the mock libcuda.so.1, whose kernels may count where their time goes, or have a planted fault.

    Args:
        code: kernels whose steps are written out, which it has too.
    """
    plain = [*FLAGS, "-O1", "-fvisibility=hidden"]
    # Couriers write flags of 32 bits.
    flags = [*plain, "-DCOLLC_LL_FLAGS=0xffffffffu", *["-DCOLLC_COUNTERS"] * counters]
    flags += [f"-DCOLLC_TYPES(X, Y)={OF_FEW}"] * (counters or code is not None)
    objects = [
        compile_unit("emulator.cpp", plain),
        compile_unit("mock_driver.cpp", flags, has_faults=fault is not None, written=code),
    ]
    return link(objects, "libcuda.so.1", "-pthread", fault=fault).parent


def put_whole(path: Path, content: bytes) -> None:
    """Writes a file that other test processes write and read too: none of them sees a part of it."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_bytes(content)
    part.replace(path)


def written(name: str, text: str) -> Path:
    """The file of a topology of a test's own, among the tests' cached things."""
    folder = cache_dir() / "tests"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{content_key([text])[:12]}.yaml"
    put_whole(path, text.encode())
    return path


def compile_for_mock(name: str, topology: str | Path, *, chunk_bytes: int, **request: Any) -> Path:
    """Returns the path of the library that `compiled_for_mock` makes."""
    return compiled_for_mock(name, topology, chunk_bytes=chunk_bytes, **request).path


def compiled_for_mock(
    name: str,
    topology: str | Path,
    *,
    chunk_bytes: int,
    counters: bool = False,
    by_rule: bool = False,
    **request: Any,
) -> Library:
    """A CUDA library with small slots. The mock does not read device code, so there is none in it.

    Args:
        name: what the file is called between libcollc- and .so.
        chunk_bytes: 0 for the slots that a library for GPUs has.
        by_rule: programs as libraries of very many sets get them, for tests that look at no choice: for slots as small
            as these the model takes a minute and more.
        request: further fields of CompileRequest.
    """
    folder = cache_dir() / "tests"
    folder.mkdir(parents=True, exist_ok=True)
    fatbin = folder / "none.fatbin"
    put_whole(fatbin, b"no device code")
    code = DeviceCode(fatbin, (Image("elf", "80", fatbin, "no compiler", "1.2"),), counters)

    def built(
        _cuda: int | None,
        _counters: bool,
        written: Written | None = None,
        in_switch: bool = False,
        direct: bool = False,
    ) -> DeviceCode:
        return dataclasses.replace(code, written=written, direct=direct, in_switch=in_switch)

    out = folder / f"libcollc-{name}.so"
    small = dataclasses.replace(CUDA, slots=2, chunk_bytes=chunk_bytes) if chunk_bytes else CUDA
    with (
        mock.patch.dict(TARGETS, {TargetKind.CUDA: small}),
        mock.patch.object(build, "build_device_code", built),
        mock.patch.object(compiler, "check_device_code", return_value=None),
        mock.patch.object(choice, "strategy_for", no_model if by_rule else strategy_for),
    ):
        asked = CompileRequest(topology=str(topology), output=out, target=TargetKind.CUDA, **request)
        return compile_topology(asked).library


def no_model(target: Target, graph: PlanGraph, nallocations: int) -> Strategy:
    found = strategy_for(target, graph, nallocations)
    return Strategy.RULE if found is Strategy.MODEL else found


@cache
def library(counters: bool = False, allocations: str | None = None) -> Path:
    """A library of three GPUs.

    Args:
        allocations: what else it serves than all three, as `collc compile --allocations` takes it.
    """
    parts = "-parts" if allocations else ""
    return compile_for_mock(
        f"odd-{'counting' if counters else 'mock'}{parts}",
        written("odd", ODD),
        chunk_bytes=4096 if allocations else 1024,
        counters=counters,
        allocations=allocations,
    )


# Slow links need few blocks. If loops take turns, each block has a different order, and no steps are written out.
SLOW_ODD = ODD.replace("gbps: 50", "gbps: 5").replace("gbps: 25", "gbps: 2").replace("gbps: 30", "gbps: 3")


@cache
def specialised() -> tuple[Path, Written]:
    """The same over slow links with kernels whose steps are written out, and these."""
    made = compiled_for_mock("odd-written", written("odd-slow", SLOW_ODD), chunk_bytes=1024, specialise=True)
    assert made.device is not None
    assert made.device.written is not None
    return made.path, made.device.written


def run(script: Script, devices: list[int], **settings: str) -> dict[str, Any]:
    return run_library(library(), script, devices, **settings)


def run_library(path: Path, script: Script, devices: list[int], **settings: str) -> dict[str, Any]:
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(mock_driver()),
        "COLLC_BOOTSTRAP_TIMEOUT": "60",
        "OPENBLAS_NUM_THREADS": "1",
        **settings,
    }
    done = subprocess.run(
        [
            sys.executable,
            str(HERE / "mock_program.py"),
            str(path),
            json.dumps(devices),
            json.dumps(script),
        ],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr[-2000:]}"
    answer = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


def calls_of(type_name: str, in_place: bool) -> Script:
    made: list[list[Sequence[object]]] = []
    for collective in ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter"):
        for op in ("sum", "avg", "max") if collective in REDUCTIONS else (None,):
            made.append([[collective, type_name, op, 1 if collective in ("broadcast", "reduce") else 0, 777, in_place]])
    return made


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("type_name", ["float", "half", "int8", "double"])
def test_ranks_that_share_a_gpu_run_in_one_cooperative_launch(type_name: str, in_place: bool) -> None:
    script = calls_of(type_name, in_place)
    answer = run(script, [0, 0, 0], COLLC_SHARE_GPU="1")
    assert answer.get("wrong") == [], answer
    assert (answer["calls"]["launch_cooperative"], answer["calls"]["launch"]) == (len(script), 0)


@pytest.mark.parametrize("protocol", ["Simple", "LL", "LL128"])
@pytest.mark.slow_for("Simple")
def test_programs_whose_steps_are_written_out(protocol: str) -> None:
    """Sums, averages and moves run by written steps; other calls, and with COLLC_SPECIALISED=0 all calls, by tables."""
    path, code = specialised()
    script = calls_of("float", False)
    settings = {"COLLC_SHARE_GPU": "1", "COLLC_PROTO": protocol, "LD_LIBRARY_PATH": str(mock_driver(code=code))}
    answer = run_library(path, script, [0, 0, 0], **settings)
    assert answer.get("wrong") == [], answer
    # Those with a root too: their channels do what channels of the others do.
    assert protocol.lower() in {name.split("_")[0] for name in code.kernels}
    assert answer["calls"]["written"] == sum(call[2] != "max" for group in script for call in group) == 8
    answer = run_library(path, script, [0, 0, 0], COLLC_SPECIALISED="0", **settings)
    assert answer.get("wrong") == [], answer
    assert answer["calls"]["written"] == 0


def test_signed_and_unsigned_integers_of_one_kernel_are_told_apart() -> None:
    """Negative values for signed types, values from 128 on for unsigned ones."""
    integers = ("int8", "uint8", "int32", "uint32", "int64", "uint64")
    ops = ("sum", "prod", "max", "min", "avg")
    script = [[["all_reduce", kind, op, 0, 333, False]] for kind in integers for op in ops]
    answer = run(script, [0, 0, 0], COLLC_SHARE_GPU="1")
    assert answer.get("wrong") == [], answer


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_ranks_on_gpus_of_their_own_reach_each_others_memory(seed: str) -> None:
    script = calls_of("float", False)
    answer = run(script, [0, 1, 2], MOCK_GPUS="3", MOCK_SEED=seed)
    assert answer.get("wrong") == [], answer
    assert (answer["calls"]["launch_cooperative"], answer["calls"]["launch"]) == (0, 3 * len(script))
    assert answer["calls"]["enable_peer"] > 0


def test_a_group_holds_several_calls_of_each_rank() -> None:
    group: list[Sequence[object]] = [
        ["all_reduce", "float", "sum", 0, 1001, False],
        ["all_gather", "int32", None, 0, 33, False],
        ["all_reduce", "float", "min", 0, 5, True],
    ]
    answer = run([group, group], [0, 1, 1], MOCK_GPUS="2", COLLC_SHARE_GPU="1")
    assert answer.get("wrong") == [], answer


def test_everything_that_was_allocated_is_released() -> None:
    answer = run([], [0, 1, 2], MOCK_GPUS="3")
    assert answer["calls"]["allocate"] == answer["calls"]["release"] > 0


@pytest.mark.parametrize(
    ("devices", "settings", "words"),
    [
        ([0, 0, 0], {}, "are on the same GPU; COLLC_SHARE_GPU=1 allows it"),
        ([0, 0, 0], {"COLLC_SHARE_GPU": "1", "MOCK_BLOCKS": "2"}, "cannot hold so many blocks at once"),
        (
            [0, 1, 2],
            {"MOCK_GPUS": "3", "MOCK_NO_PEER": "all", "MOCK_NO_REGISTER": "1"},
            "GPUs that do not reach each other need pinned host memory",
        ),
        ([0, 1, 2], {"MOCK_GPUS": "3", "MOCK_MEGABYTES": "0"}, "allocating GPU memory failed: out of memory"),
        ([0, 1, 2], {"MOCK_GPUS": "3", "MOCK_MEGABYTES": "1"}, "MB for the FIFOs of a rank"),
        (
            [0, 1, 2],
            {"MOCK_GPUS": "3", "MOCK_MODULE": "209"},
            "(sm_90) or its driver (for CUDA 13.0) cannot run this library's kernels: sm_80 (driver 1.2 or newer)",
        ),
        ([0, 1, 7], {"MOCK_GPUS": "3"}, "choosing the GPU failed"),
        ([0, 1, 2], {"MOCK_GPUS": "0"}, "the NVIDIA driver shows no GPU"),
    ],
)
def test_what_is_missing_is_said_at_creation(devices: list[int], settings: dict[str, str], words: str) -> None:
    assert words in str(run([], devices, **settings).get("error"))


def test_without_a_driver_creation_says_so(tmp_path: Path) -> None:
    answer = run([], [0, 0, 0], LD_LIBRARY_PATH=str(tmp_path))
    assert "needs the NVIDIA driver, which is missing here: libcuda.so.1" in str(answer.get("error"))


def driver_without(symbol: str, folder: Path) -> str:
    """A folder with the mock driver less one function: its name in the symbol table is another."""
    whole = (mock_driver() / "libcuda.so.1").read_bytes()
    name, other = f"\0{symbol}\0".encode(), f"\0{'x' * len(symbol)}\0".encode()
    assert name in whole
    (folder / "libcuda.so.1").write_bytes(whole.replace(name, other))
    return str(folder)


def test_drivers_before_cuda_12_4_have_no_way_to_load_a_kernel_early(tmp_path: Path) -> None:
    group = [["all_reduce", "float", "sum", 0, 33, False]]
    answer = run([group], [0, 1, 2], MOCK_GPUS="3", LD_LIBRARY_PATH=driver_without("cuFuncLoad", tmp_path))
    assert answer.get("wrong") == [], answer


def test_no_internal_call_goes_by_a_public_name() -> None:
    public = {symbol.name for symbol in elf.symbols(library()) if symbol["st_shndx"] != "SHN_UNDEF"}
    assert elf.relocated(library()) & public == set()
    assert "memcpy" in elf.relocated(library())


def test_a_driver_that_is_too_old_is_told(tmp_path: Path) -> None:
    answer = run([], [0, 1, 2], MOCK_GPUS="3", LD_LIBRARY_PATH=driver_without("cuEventRecordWithFlags", tmp_path))
    assert "too old: it has no cuEventRecordWithFlags (525 has)" in str(answer.get("error"))


def test_half_a_group_on_a_shared_gpu_is_refused() -> None:
    answer = run([[["all_reduce", "float", "sum", 0, 9, False, [0, 1]]]], [0, 0, 0], COLLC_SHARE_GPU="1")
    assert "3 ranks of this process share GPU 0 and must make their calls in one group" in str(answer.get("error"))
