"""`collc compile --specialise`: kernels whose steps are written out, on the emulator beside those that read tables."""

from __future__ import annotations

import ctypes
import dataclasses
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
from cuda_emulator import NOBODY, PackedTables, build_emulator, emulate
from emulated_calls import CHUNK_BYTES, differences, make_call, small_program
from jinja2.meta import find_undeclared_variables
from support.programs import TREE_COLLECTIVES

from collc.bench.data import TYPES, Case
from collc.build.cuda import DeviceCode, embed
from collc.build.fatbin import Image
from collc.build.toolchain import find_cxx, run_tool
from collc.codegen.render import KERNELS, environment
from collc.codegen.specialise import KernelsContext, Written, specialise
from collc.collectives.model import Collective
from collc.ir.nodes import Program
from collc.resources import resource_dir

PROTOCOLS = ("Simple", "LL", "LL128")
RANKS = (2, 3, 4)
TYPES_WRITTEN = ("float", "half", "bfloat16", "int32", "uint32")


@cache
def program(collective: Collective, nranks: int) -> Program:
    return small_program(collective, nranks, nranks, slots=2)


@cache
def written() -> Written:
    programs = [(program(c, n), p) for c in TREE_COLLECTIVES for n in RANKS for p in PROTOCOLS]
    made = specialise("0", programs, most_steps=1000)
    assert made is not None
    return made


def run(
    made_for: Written, tables: Program, type_name: str, op: str | None, seed: int, protocol: str
) -> tuple[str, int]:
    """Returns the error of two calls, and the number of calls that ran by written steps."""
    kind, root = TYPES[type_name], tables.root or 0
    counts = (3 * CHUNK_BYTES // kind.size + 5, 1 + seed % 40)
    cases = [Case(tables.collective, tables.nranks, root, count, kind, op) for count in counts]
    made = [make_call(case, in_place=seed % 3 == 0, misplacement=kind.size * (seed % 2)) for case in cases]
    outcome = emulate(
        build_emulator(written=made_for),
        PackedTables([tables], CHUNK_BYTES),
        [call for call, _ in made],
        seed=seed,
        report_races=seed % 2 == 0,
        threads=(8, 16)[seed // 2 % 2],
        protocol=protocol,
        pinned_pairs=0 if protocol == "LL128" else (0, NOBODY, seed)[seed % 3],
    )
    return outcome.failure or "; ".join(differences(made)), outcome.written


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("collective", TREE_COLLECTIVES, ids=lambda c: c.value)
def test_every_type_under_many_schedules(collective: Collective, protocol: str) -> None:
    for nranks in RANKS:
        for number, type_name in enumerate(TYPES_WRITTEN):
            for seed in (7 * number + nranks, 7 * number + nranks + 1):
                op = ("sum", "avg")[seed % 2] if collective.reduces else None
                found = run(written(), program(collective, nranks), type_name, op, seed, protocol)
                assert found == ("", 2), f"{nranks} ranks, {type_name}, seed {seed}"


def test_other_operations_and_types_run_by_the_table() -> None:
    reduced = program(Collective.ALL_REDUCE, 3)
    assert run(written(), reduced, "float", "max", 1, "Simple") == ("", 0)
    moved = program(Collective.BROADCAST, 3)
    assert run(written(), moved, "float", None, 1, "Simple") == ("", 2)


def test_a_program_with_a_channel_that_is_not_written_out_runs_by_the_table() -> None:
    made = specialise("0", [(program(Collective.BROADCAST, 2), "Simple")])
    assert made is not None
    assert run(made, program(Collective.ALL_REDUCE, 3), "float", "sum", 1, "Simple") == ("", 0)


def test_the_template_prints_what_the_context_has() -> None:
    source = environment().loader.get_source(environment(), KERNELS)[0]  # type: ignore[union-attr]
    used = find_undeclared_variables(environment().parse(source))
    assert used == {field.name for field in dataclasses.fields(KernelsContext)}


def test_pascal_has_no_ll128(tmp_path: Path) -> None:
    source = tmp_path / "written.cu.cpp"
    source.write_text(written().source, encoding="utf-8")
    include = [f"-I{resource_dir('templates') / 'include'}", f"-I{Path(__file__).parent / 'emulation'}"]
    defines = ['-DCOLLC_EMULATION="emulated_device.h"', "-DCOLLC_PRE_VOLTA"]
    command = [find_cxx().path, "-std=c++17", "-Wno-unknown-pragmas", "-E", *defines, *include, str(source)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert set(re.findall(r"collc_written_(\w+?)_", text)) == {"simple", "ll"}


def test_the_library_gets_the_variants(tmp_path: Path) -> None:
    fatbin = tmp_path / "none.fatbin"
    fatbin.write_bytes(b"no device code")
    code = DeviceCode(fatbin, (Image("elf", "80", fatbin, "no compiler", "1.2"),), False, written())
    reader = tmp_path / "reader.cpp"
    reader.write_text(
        'extern "C" const unsigned collc_variants[];\nextern "C" const unsigned *read() { return collc_variants; }\n'
    )
    made = tmp_path / "reader.so"
    run_tool([find_cxx().path, "-shared", "-fPIC", str(reader), str(embed(code, find_cxx())), "-o", str(made)])
    loaded = ctypes.CDLL(str(made))
    loaded.read.restype = ctypes.c_void_p
    assert ctypes.string_at(loaded.read(), len(written().table)) == written().table


def test_what_would_be_too_long_is_left_out() -> None:
    programs = [(program(Collective.ALL_REDUCE, 4), "Simple"), (program(Collective.BROADCAST, 2), "LL")]
    whole = specialise("0", programs)
    assert whole is not None
    assert {name.split("_")[0] for name in whole.kernels} == {"simple", "ll"}
    short = specialise("0", programs, most_steps=2)
    assert short is not None
    assert {name.split("_")[0] for name in short.kernels} == {"ll"}
    assert specialise("0", programs, most_steps=0) is None


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("step<0, 1, 0, 1>", "step<9, 1, 0, 1>"), (", 2, 2>(i, 0)", ", 2, 1>(i, 0)"), (", 7, 2,", ", 7, 1,")],
    ids=["another iteration", "a receiver less", "a sender less"],
)
def test_a_step_that_is_written_wrong_is_found(right: str, wrong: str) -> None:
    tables = small_program(Collective.ALL_REDUCE, 3, 7)
    made = specialise("0", [(tables, "Simple")])
    assert made is not None
    assert run(made, tables, "float", "sum", 2, "Simple") == ("", 2)
    assert right in made.source
    spoilt = dataclasses.replace(made, source=made.source.replace(right, wrong))
    assert run(spoilt, tables, "float", "sum", 2, "Simple")[0]
