"""Builds the emulator with the CUDA target's device source and runs programs on it."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import planted_faults

from collc.build.toolchain import find_cxx
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
    # As `Tables` of tables.h.
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
    """One collective call on all ranks. `outputs` are overwritten with what the ranks' output buffers hold at the end.

    in_offset: per rank, the byte offset of the input within the output for an in-place call, or None.
    out_offset: per rank, the byte offset at which the result goes into the output; None: 0.
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
    """What a run came to: "" or what went wrong, the first report of each rank that gave up, how often it switched.

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
    """The emulator with all kernels, or, with a planted fault, with float's alone.

    Args:
        pre_volta: take Pascal's verbs and keep the lanes of a warp in step; with the kernels of f32 and u32 alone.
        counters: kernels that count where their time goes; those of f32 and u32 alone.
        written: also the kernels of programs whose steps are written out; in a small build, whose kernels by the table
            are those of f32 and u32 alone.
    """
    return _build(fault, pre_volta, counters, written)


@cache
def _build(fault: str | None, pre_volta: bool, counters: bool, written: Written | None) -> ctypes.CDLL:
    compiler = find_cxx()
    templates = resource_dir("templates")
    sources = sorted([*HERE.iterdir(), *templates.rglob("*.h"), *(templates / "cuda").glob("*.cu")])
    digest = hashlib.sha256(compiler.version.encode())
    for source in sources:
        digest.update(source.read_bytes())
    digest.update(repr(planted_faults.EDITS.get(fault or "")).encode())
    cache_root = Path(os.environ.get("COLLC_TEST_CACHE", Path(tempfile.gettempdir()) / f"collc-emulator-{os.getuid()}"))
    folder = cache_root / digest.hexdigest()[:24]
    folder.mkdir(parents=True, exist_ok=True)
    own = f"-{hashlib.sha256(repr(written).encode()).hexdigest()[:12]}" if written else ""
    library = folder / f"{fault or 'whole'}{'-pascal' if pre_volta else ''}{'-counters' if counters else ''}{own}.so"
    if not library.is_file():
        include = ["-I", str(HERE), "-I", str(templates / "include"), "-I", str(templates / "cuda")]
        include += ["-I", str(templates / "runtime")]
        defines = ['-DCOLLC_EMULATION="emulated_device.h"']
        if fault:
            planted = planted_faults.plant(fault, folder / f"planted-{fault}")
            defines += [*planted, "-DCOLLC_TYPES(X, Y)=X(Y, f32, float)"]
        if pre_volta:
            defines.append("-DCOLLC_PRE_VOLTA")
        if counters:
            defines.append("-DCOLLC_COUNTERS")
        if written:
            source = folder / f"written{own}.h"
            source.write_text(written_source(written))
            defines.append(f'-DCOLLC_WRITTEN="{source}"')
        if (pre_volta or counters or written) and not fault:
            # What is ordered before what, and what is counted, has nothing to do with types: two show it.
            defines.append("-DCOLLC_TYPES(X, Y)=X(Y, f32, float) X(Y, u32, uint32_t)")
        # What is the same with every fault is compiled once.
        emulator, driver = folder / "emulator.o", folder / "driver.o"
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            for name, level, extra, target in (
                ("emulator.cpp", "-O2", [], emulator),
                ("driver.cpp", "-O1", [], driver),
                ("kernels.cpp", "-O0" if fault or written else "-O1", defines, Path(scratch) / "kernels.o"),
            ):
                if not target.is_file():
                    made = Path(scratch) / f"made-{target.name}"
                    command = [compiler.path, *FLAGS, level, *extra, *include, "-c", str(HERE / name)]
                    command += ["-o", str(made)]
                    subprocess.run(command, check=True)
                    made.replace(target)
            linked = Path(scratch) / "linked.so"
            objects = [str(emulator), str(driver), str(Path(scratch) / "kernels.o")]
            # Each build has its own emulator: no symbol of one library may resolve to another's.
            subprocess.run([compiler.path, "-shared", "-Wl,-Bsymbolic", *objects, "-o", str(linked)], check=True)
            linked.replace(library)
    loaded = ctypes.CDLL(str(library), mode=os.RTLD_LOCAL)
    loaded.collc_emulate.restype = ctypes.c_int
    loaded.collc_emulate_waiting_lane.restype = ctypes.c_int
    loaded.collc_emulate_exchange.restype = ctypes.c_int
    return loaded


def written_source(written: Written) -> str:
    """What kernels.cpp and mock_driver.cpp include: the generated source, the list of its kernels, the variants."""
    words = ", ".join(map(str, np.frombuffer(written.table, "<u4")))
    kernels = " ".join(f"X({name})" for name in written.kernels)
    return (
        f"{written.source}\n#define COLLC_WRITTEN_KERNELS(X) {kernels}\n"
        f"namespace collc::cuda {{\n[[maybe_unused]] static const uint32_t kVariants[] = {{{words}}};\n}}\n"
    )


def lane_waits(library: ctypes.CDLL, seed: int, *, own_warp: bool) -> str:
    """What goes wrong when a lane waits for a flag of another lane, of its own warp or of the other one."""
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
    left_out: int = 0,
    wrong_size: bool = False,
) -> str:
    """What goes wrong when three ranks send each other messages of about `size` bytes; "" if nothing does.

    Args:
        left_out: the part that the kernel lacks, by its number in exchange.h; of a library built with EXCHANGE.
        wrong_size: receivers expect other messages than are sent.
    """
    message = ctypes.create_string_buffer(400)
    numbers = [ctypes.c_uint32(n) for n in (report_races, size, messages, left_out, wrong_size)]
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
        protocol: that all programs run over; None: as the tables say.
        chunk_bytes, channels: instead of the programs' own; 0: their own.
        late_rank: begins a (pretended) second after all others have come to wait for it.
        pinned_pairs: a seed for which pairs have pinned memory between them; 0: none, NOBODY: all.
        slots_between: ranks of even and of odd numbers do not read each other's buffers.
        processes: a seed for which ranks are in other processes, and what these have mapped; 0: all are in one.
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
