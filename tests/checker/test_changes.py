"""Libraries with changed bytes: what can alter a result, a placement or a wait is refused.

A changed library does not match its digests. Most tests sign it again, so that the proofs must refuse it.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.changed import LIBRARIES, Changed, Field, built, byte_case, field_case, is_refused
from support.libraries import library

from collc.checker.layout import ARRAYS, STRUCTS
from collc.checker.library import check_library
from collc.errors import CollcError

QUICK = ("three unequal GPUs", "allocations", "survives", "cards")
EVERY = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in LIBRARIES]
# Signed changes of one field that may pass, with the reason. There are none: FIFO numbers, places and counts have one
# right value; shares, trees and orders of reduction are the plan's; sizes, protocols, slots and the sum of the lags
# stand in the manifest too, names and classes of GPUs in the description of the machine.
HARMLESS: dict[str, str] = {}


@pytest.mark.parametrize("name", EVERY)
def test_a_change_of_any_field_is_refused_although_it_is_signed(tmp_path: Path, name: str) -> None:
    assert not is_refused(built(name))
    whole = Changed(built(name))
    tried: set[tuple[str, str]] = set()
    accepted = []
    for field in whole.fields(2):
        for value in whole.others(field)[:2]:
            changed = Changed(built(name))
            changed.put(field, value)
            tried.add((field.array, field.name))
            if not is_refused(changed.write(tmp_path / "changed.so")) and f"{field.array}.{field.name}" not in HARMLESS:
                accepted.append(f"{field.label()}: {whole.value(field)} -> {value}")
    assert not accepted
    held = {(array, field) for array, (struct_, _) in ARRAYS.items() for field, _ in STRUCTS[struct_]}
    assert {one for one in tried if one[0] != "header"} == {one for one in held if whole.extents[one[0]][1]}


def test_every_field_occurs_in_some_library() -> None:
    # Looks at the quick libraries first, and builds the others, whose programs the model chooses, only if needed.
    names = sorted(LIBRARIES, key=lambda name: name not in (*QUICK, "bus ids"))
    for array, (_, element) in ARRAYS.items():
        assert any(Changed(built(name)).extents[array][1] for name in names), element


def test_random_changes_of_fields_are_refused(tmp_path: Path) -> None:
    """Changes any field of any row to any value, with and without a new signature. `make fuzz-libraries` tries more."""
    for seed in range(40):
        case = field_case(seed, tmp_path, (*QUICK, "two servers"))
        assert case["verdict"] == "refused", case


def test_the_faults_that_were_accepted_once(tmp_path: Path) -> None:
    """Tables that clear kFinal, change slots or their size, or give GPUs the plan of another graph."""
    name = "allocations"
    whole = Changed(built(name))
    fields = {field.label(): field for field in whole.fields(10_000)}

    def refused(field: Field, value: int) -> bool:
        changed = Changed(built(name))
        changed.put(field, value)
        return is_refused(changed.write(tmp_path / "changed.so"))

    final = [f for label, f in fields.items() if label.endswith(".flags") and whole.value(f) & 4]
    assert final
    assert all(refused(field, whole.value(field) & ~4) for field in final)
    for allocation in range(3):
        for slots in (1, 2, 3, 5, 8, 64):
            assert refused(fields[f"allocations[{allocation}].slots"], slots)
        assert refused(fields[f"allocations[{allocation}].slot_bytes"], 128)
        assert refused(fields[f"allocations[{allocation}].slot_bytes"], 1 << 20)
    pointed = [f for label, f in fields.items() if label.startswith("gpu_sets[") and label.endswith(".allocation")]
    assert len(pointed) > 3
    for field in pointed:
        assert all(refused(field, other) for other in {0, 1, 2} - {whole.value(field)})


def test_random_changes_of_bytes_are_refused_or_outside_of_what_is_loaded(tmp_path: Path) -> None:
    """Changes bytes of a whole library, its code included."""
    found = Counter(str(byte_case(seed, tmp_path)["verdict"]) for seed in range(60))
    assert found["refused"] > 20
    assert found["outside"] > 2
    assert found["accepted"] == 0


def test_strip_leaves_a_library_as_it_was_built_and_editors_do_not(tmp_path: Path) -> None:
    """Symbols for debuggers and sections are nothing that is loaded; a search path is."""
    stripped = tmp_path / "stripped.so"
    subprocess.run(["strip", "-o", str(stripped), str(library("pair"))], check=True)
    assert stripped.stat().st_size < library("pair").stat().st_size
    check_library(stripped)
    edited = bytearray(library("pair").read_bytes())
    at = edited.index(b"libc.so.6\0")
    edited[at : at + 9] = b"libX.so.6"
    (tmp_path / "edited.so").write_bytes(edited)
    with pytest.raises(CollcError, match=r"its constants differ \(`strip` leaves these bytes alone; prelink, patchelf"):
        check_library(tmp_path / "edited.so")


RUN = """
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
lib.ncclGetLastError.restype = ctypes.c_char_p
print(lib.ncclGetUniqueId((ctypes.c_char * 128)()), lib.ncclGetLastError(None).decode())
print(lib.ncclCommInitAll((ctypes.c_void_p * 2)(), 2, None), lib.ncclGetLastError(None).decode())
"""


def run(path: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(path)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_library_with_damaged_tables_does_not_run(tmp_path: Path) -> None:
    """The runtime looks at the tables' own digest before it makes anything, and hands nothing on to another NCCL."""
    assert [line.split()[0] for line in run(library("pair"))] == ["0", "0"]
    whole = Changed(library("pair"))
    for field in [*whole.fields(1)][::7]:
        changed = Changed(library("pair"))
        changed.put(field, whole.value(field) ^ 1)
        said = run(changed.write(tmp_path / "damaged.so", signed=False))
        for line in said:
            assert line.startswith("3 "), (field.label(), line)
            assert "the tables of this library are damaged: compile it again" in line, (field.label(), line)
