"""Builds the emulator with the CUDA target's device source and runs programs on it."""

from __future__ import annotations

import ctypes
import os
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import planted_faults

from collc.build.cache import cached, content_key
from collc.build.toolchain import find_cxx, run_tool
from collc.checker.layout import ARRAYS, PROTOCOLS, STRUCTS, When
from collc.codegen.context import TableBuilder
from collc.codegen.specialise import Written
from collc.ir.nodes import Program
from collc.resources import resource_dir

Array = npt.NDArray[Any]
HERE = Path(__file__).resolve().parent / "emulation"
NOBODY = 0xFFFFFFFF
MOST_CHANNELS = 32  # as in driver.cpp
FLAGS = ["-std=c++17", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
KERNEL_TYPES = {
    "int8": "i8",
    "uint8": "u8",
    "int32": "i32",
    "uint32": "u32",
    "int64": "i64",
    "uint64": "u64",
    "half": "f16",
    "float": "f32",
    "double": "f64",
    "bfloat16": "bf16",
    "e4m3": "e4m3",
    "e5m2": "e5m2",
}


class _Tables(ctypes.Structure):
    # The layout of `Tables` in tables.h.
    _fields_ = [(name, ctypes.c_void_p) for name in ARRAYS] + [
        (f"n{name}", ctypes.c_uint32) for name in ("allocations", "gpu_sets", "gpus")
    ]


class _Call(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.c_char_p),
        ("count", ctypes.c_uint64),
        ("program", ctypes.c_uint32),
        ("divisor", ctypes.c_uint32),
        ("input_bytes", ctypes.POINTER(ctypes.c_uint64)),
        ("output_bytes", ctypes.POINTER(ctypes.c_uint64)),
        ("inputs", ctypes.POINTER(ctypes.c_void_p)),
        ("outputs", ctypes.POINTER(ctypes.c_void_p)),
        ("misplacement", ctypes.c_uint32),
        ("in_place", ctypes.c_uint32),
        ("in_offset", ctypes.POINTER(ctypes.c_int64)),
        ("out_offset", ctypes.POINTER(ctypes.c_int64)),
        ("factors", ctypes.POINTER(ctypes.c_uint64)),
        ("factors_in_memory", ctypes.c_uint32),
        ("weights", ctypes.c_uint32),
        ("lent", ctypes.POINTER(ctypes.c_uint64)),
    ]


class _Run(ctypes.Structure):
    _fields_ = [
        ("seed", ctypes.c_uint64),
        ("resident", ctypes.c_uint32),
        ("report_races", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("one_device", ctypes.c_uint32),
        ("abort_at", ctypes.c_uint64),
        ("timeout_ns", ctypes.c_uint64),
        ("missing_rank", ctypes.c_uint32),
        ("protocol", ctypes.c_uint32),
        ("chunk_bytes", ctypes.c_uint32),
        ("channels", ctypes.c_uint32),
        ("ncalls", ctypes.c_uint32),
        ("calls", ctypes.POINTER(_Call)),
        ("report", ctypes.POINTER(ctypes.c_uint32)),
        ("switches", ctypes.c_uint64),
        ("ticks", ctypes.POINTER(ctypes.c_uint64)),
        ("late_rank", ctypes.c_uint32),
        ("pinned_pairs", ctypes.c_uint32),
        ("written", ctypes.c_uint32),
        ("slots_between", ctypes.c_uint32),
        ("processes", ctypes.c_uint32),
    ]


@dataclass
class Call:
    """One collective call on all ranks. The final contents of the ranks' output buffers overwrite `outputs`.

    in_offset: per rank, the byte offset of the input within the output for an in-place call, or None.
    out_offset: per rank, the byte offset of the result within the output; None: 0.
    factors: per rank, the bits of the factor of a scaled sum; None: no such sum.
    weights: of the classes of links, in a program that is cut into them.
    lent: per rank, which buffers others may read, by the kernels for that (1: the input, 2: the output); None: other
        kernels. What is not in place is overwritten behind the call.
    """

    program: int
    kernel: str
    count: int
    inputs: Sequence[Array]
    outputs: Sequence[Array]
    divisor: int = 0
    misplacement: int = 0
    in_offset: Sequence[int] | None = None
    out_offset: Sequence[int] | None = None
    factors: Sequence[int] | None = None
    factors_in_memory: bool = False
    weights: Sequence[int] = ()
    lent: Sequence[int] | None = None


@dataclass
class Outcome:
    """The result of a run: "" or the error, the first report of each rank that gave up, the number of switches.

    ticks: per rank and channel (waiting, copying, reducing, nanoseconds of all three); zeros unless the kernels count.
    written: calls that kernels with written-out steps have run.
    """

    failure: str
    reports: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    switches: int = 0
    ticks: list[list[tuple[int, ...]]] = field(default_factory=list)
    written: int = 0


def build_emulator(
    fault: str | None = None, pre_volta: bool = False, counters: bool = False, written: Written | None = None
) -> ctypes.CDLL:
    """Returns the emulator with all kernels. If any argument is set, it has only the kernels of f32 and u32.

    Args:
        fault: the name of a planted fault. `NO_FAULT`: the code that can have all faults, and has none of them.
        pre_volta: take Pascal's verbs and keep the lanes of a warp in step.
        counters: kernels that count where their time goes.
        written: also the kernels of programs whose steps are written out.
    """
    return _load(fault, pre_volta, counters, written)


@cache
def _load(fault: str | None, pre_volta: bool, counters: bool, written: Written | None) -> ctypes.CDLL:
    defines = ["-DCOLLC_PRE_VOLTA"] * pre_volta + ["-DCOLLC_COUNTERS"] * counters
    if fault or pre_volta or counters or written:
        # Order and counts do not depend on types, so two types are enough.
        defines.append("-DCOLLC_TYPES(X, Y)=X(Y, f32, float) X(Y, u32, uint32_t)")
    flags = [*FLAGS, "-O0" if written else "-O1", *defines]
    objects = [
        compile_unit("emulator.cpp", [*FLAGS, "-O2"]),
        compile_unit("driver.cpp", [*FLAGS, "-O1"]),
        compile_unit("kernels.cpp", flags, has_faults=bool(fault), written=written),
    ]
    loaded = ctypes.CDLL(str(link(objects, "emulator.so", fault=fault)), mode=os.RTLD_LOCAL)
    loaded.collc_emulate.restype = ctypes.c_int
    loaded.collc_emulate_waiting_lane.restype = ctypes.c_int
    loaded.collc_emulate_exchange.restype = ctypes.c_int
    return loaded


def compile_unit(name: str, flags: Sequence[str], *, has_faults: bool = False, written: Written | None = None) -> Path:
    """Compiles a file of the emulator or of the mock driver, and returns the path of its object in the build cache.

    Args:
        has_faults: plant all faults into its headers (planted_faults.py). `link` chooses one of them.
        written: kernels whose steps are written out, which it has too.
    """
    compiler = find_cxx()
    include = [str(path) for path in (HERE, *(_templates() / name for name in ("include", "cuda", "runtime")))]
    flags = [*flags, '-DCOLLC_EMULATION="emulated_device.h"']

    def make(output: Path) -> None:
        given = list(flags)
        if written:
            source = output.with_name("written.h")
            source.write_text(written_source(written))
            given.append(f'-DCOLLC_WRITTEN="{source}"')
        if has_faults:
            given += planted_faults.plant(output.with_name("planted"))
        given += [f"-I{path}" for path in include]
        run_tool([compiler.path, *given, "-c", str(HERE / name), "-o", str(output)])

    faults = repr(planted_faults.EDITS) if has_faults else ""
    more: list[str | bytes] = [written.source, written.table] if written else []
    return cached(
        content_key([compiler.version, name, *flags, faults, *more, _sources()]), f"{Path(name).stem}.o", make
    )


def link(objects: Sequence[Path], name: str, *options: str, fault: str | None = None) -> Path:
    """Links objects of `compile_unit`, the code with faults so that it has `fault`; returns the path of the library."""
    compiler = find_cxx()
    # Each build has its own emulator: no symbol of one library may resolve to another's.
    command = [compiler.path, "-shared", "-fPIC", "-Wl,-Bsymbolic", *options]

    def make(output: Path) -> None:
        switch = [f"-I{HERE}", str(planted_faults.switch(fault, output.parent))] if fault else []
        run_tool([*command, *map(str, objects), *switch, "-o", str(output)])

    # The folder of an entry is named by its key.
    parts = [*command, fault or "", str(planted_faults.number_of(fault)) if fault else "", compiler.version]
    return cached(content_key([*parts, *(path.parent.name for path in objects)]), name, make)


def _templates() -> Path:
    return resource_dir("templates")


@cache
def _sources() -> str:
    """The key of the contents of all files that a unit may include."""
    templates = _templates()
    files = sorted([*HERE.iterdir(), *templates.rglob("*.h"), *(templates / "cuda").glob("*.cu")])
    return content_key([file.read_bytes() for file in files])


def written_source(written: Written) -> str:
    """Returns the text that kernels.cpp and mock_driver.cpp include: the source, the list of kernels, the variants."""
    words = ", ".join(map(str, np.frombuffer(written.table, "<u4")))
    kernels = " ".join(f"X({name})" for name in written.kernels)
    return (
        f"{written.source}\n#define COLLC_WRITTEN_KERNELS(X) {kernels}\n"
        f"namespace collc::cuda {{\n[[maybe_unused]] static const uint32_t kVariants[] = {{{words}}};\n}}\n"
    )


def lane_waits(library: ctypes.CDLL, seed: int, *, own_warp: bool) -> str:
    """Returns the error when a lane waits for a flag of another lane, in its warp or in the other warp."""
    message = ctypes.create_string_buffer(400)
    library.collc_emulate_waiting_lane(ctypes.c_uint64(seed), ctypes.c_uint32(own_warp), message, ctypes.c_size_t(400))
    return message.value.decode()


def exchange(
    library: ctypes.CDLL,
    seed: int,
    *,
    size: int,
    messages: int = 2,
    report_races: bool = True,
    wrong_size: bool = False,
) -> str:
    """Returns the error when three ranks send each other messages of about `size` bytes; "" if all is right.

    Args:
        wrong_size: receivers expect other messages than are sent.
    """
    message = ctypes.create_string_buffer(400)
    numbers = [ctypes.c_uint32(n) for n in (report_races, size, messages, wrong_size)]
    library.collc_emulate_exchange(ctypes.c_uint64(seed), *numbers, message, ctypes.c_size_t(400))
    return message.value.decode()


class PackedTables:
    """The tables of one allocation in the memory layout of tables.h."""

    def __init__(self, programs: Sequence[Program], slot_bytes: int, when: Sequence[When] | None = None) -> None:
        builder = TableBuilder()
        builder.add_allocation(programs, slot_bytes=slot_bytes, when=when)
        self.arrays = {table.name: _pack(table.name, table.rows) for table in builder.tables()}
        pointers = {name: ctypes.cast(data, ctypes.c_void_p) for name, data in self.arrays.items()}
        self.struct = _Tables(**pointers, nallocations=1)
        self.nranks = programs[0].nranks


def _pack(symbol: str, rows: Sequence[Any]) -> ctypes.Array[ctypes.c_char]:
    layout = struct.Struct("<" + "".join(code for _, code in STRUCTS[ARRAYS[symbol][0]]))
    data = b"".join(layout.pack(*map(int, re.findall(r"-?\d+", row.cells))) for row in rows)
    return ctypes.create_string_buffer(data, len(data))


def emulate(
    library: ctypes.CDLL,
    tables: PackedTables,
    calls: Sequence[Call],
    *,
    seed: int = 0,
    resident: int = 0,
    report_races: bool = True,
    threads: int = 16,
    one_device: bool = False,
    abort_at: int = 0,
    timeout_ns: int = 0,
    missing_rank: int = NOBODY,
    protocol: str | None = "Simple",
    chunk_bytes: int = 0,
    channels: int = 0,
    late_rank: int = NOBODY,
    pinned_pairs: int = 0,
    slots_between: bool = False,
    processes: int = 0,
) -> Outcome:
    """Runs calls in order on every rank; ranks are as far apart as the FIFOs allow.

    Args:
        protocol: the protocol of all programs; None: as in the tables.
        chunk_bytes, channels: in place of the programs' values; 0: the programs' values.
        late_rank: begins a (pretended) second after all others have come to wait for it.
        pinned_pairs: a seed that selects the pairs with pinned memory between them; 0: none, NOBODY: all.
        slots_between: ranks of even and of odd numbers do not read each other's buffers.
        processes: a seed that selects ranks in other processes, and their mappings; 0: all ranks are in one process.
    """
    keep: list[Any] = []

    def array(kind: Any, values: Sequence[Any]) -> Any:
        made = (kind * len(values))(*values)
        keep.append(made)
        return made

    rows = [
        _Call(
            call.kernel.encode(),
            call.count,
            call.program,
            call.divisor,
            array(ctypes.c_uint64, [a.nbytes for a in call.inputs]),
            array(ctypes.c_uint64, [a.nbytes for a in call.outputs]),
            array(ctypes.c_void_p, [a.ctypes.data for a in call.inputs]),
            array(ctypes.c_void_p, [a.ctypes.data for a in call.outputs]),
            call.misplacement,
            call.in_offset is not None,
            array(ctypes.c_int64, call.in_offset or [0] * len(call.inputs)),
            array(ctypes.c_int64, call.out_offset or [0] * len(call.inputs)),
            array(ctypes.c_uint64, call.factors) if call.factors is not None else None,
            call.factors_in_memory,
            sum(weight << 8 * i for i, weight in enumerate(call.weights)),
            array(ctypes.c_uint64, call.lent) if call.lent is not None else None,
        )
        for call in calls
    ]
    report = (ctypes.c_uint32 * (4 * tables.nranks))()
    ticks = (ctypes.c_uint64 * (4 * MOST_CHANNELS * tables.nranks))()
    run = _Run(
        seed,
        resident,
        report_races,
        threads,
        one_device,
        abort_at,
        timeout_ns,
        missing_rank,
        NOBODY if protocol is None else PROTOCOLS[protocol],
        chunk_bytes,
        channels,
        len(rows),
        array(_Call, rows),
        ctypes.cast(report, ctypes.POINTER(ctypes.c_uint32)),
        0,
        ctypes.cast(ticks, ctypes.POINTER(ctypes.c_uint64)),
        late_rank,
        pinned_pairs,
        0,
        slots_between,
        processes,
    )
    message = ctypes.create_string_buffer(400)
    failed = library.collc_emulate(ctypes.byref(tables.struct), ctypes.byref(run), message, ctypes.c_size_t(400))
    text = message.value.decode()
    assert bool(failed) == bool(text)
    reports = {r: tuple(report[4 * r : 4 * r + 4]) for r in range(tables.nranks) if report[4 * r]}
    counted = [tuple(ticks[4 * c : 4 * c + 4]) for c in range(MOST_CHANNELS * tables.nranks)]
    per_rank = [counted[r * MOST_CHANNELS : (r + 1) * MOST_CHANNELS] for r in range(tables.nranks)]
    return Outcome(text, reports, run.switches, per_rank, run.written)  # type: ignore[arg-type]


def same_bits(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes()


def empty(elements: int, carrier: str) -> Array:
    """A buffer full of a pattern that no result has."""
    return np.frombuffer(b"\xcd" * (elements * np.dtype(carrier).itemsize), dtype=carrier).copy()
