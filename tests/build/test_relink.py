"""The code of a library is linked again and compared, so a change is refused although compile's function signed it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path
from unittest import mock

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection
from support.changed import LIBRARIES, built
from support.cli import collc, refused
from support.libraries import library

from collc.api.running import Library
from collc.build import relink
from collc.build.manifest import sign
from collc.build.toolchain import Compiler, find_cxx
from collc.checker.library import check_library
from collc.errors import RunError

RETURN_0 = bytes.fromhex("31c0c3")  # xor eax, eax; ret
_EXECUTABLE = 1
_SYMBOL_VALUE = 8  # of an entry of a symbol table
_ADDEND = 16  # of an entry of a table of relocations


@cache
def whole() -> bytes:
    """A host library of two GPUs."""
    return library("pair").read_bytes()


def elf() -> ELFFile:
    return ELFFile(BytesIO(whole()))


def file_offset(address: int) -> int:
    """Returns the file offset of the bytes at an address of the loaded library."""
    return next(iter(elf().address_offsets(address)))


def dynamic(tag: str) -> tuple[int, int]:
    """The place in the file of an entry of the dynamic section, and its value."""
    section = elf().get_section_by_name(".dynamic")
    assert isinstance(section, DynamicSection)
    for number, entry in enumerate(section.iter_tags()):
        if entry.entry.d_tag == tag:
            return section["sh_offset"] + 16 * number, entry.entry.d_val
    raise AssertionError(tag)


def symbol(name: str) -> tuple[int, int]:
    """The place in the file of an entry of the dynamic symbols, and the address that it gives."""
    section = elf().get_section_by_name(".dynsym")
    assert isinstance(section, SymbolTableSection)
    numbers = {one.name: (i, one["st_value"]) for i, one in enumerate(section.iter_symbols())}
    number, address = numbers[name]
    return section["sh_offset"] + number * section["sh_entsize"], address


def change_code(data: bytearray) -> None:
    at = file_offset(symbol("ncclAllReduce")[1])
    data[at : at + len(RETURN_0)] = RETURN_0


def change_exports(data: bytearray) -> None:
    """ncclAllReduce becomes ncclGroupStart."""
    struct.pack_into("<Q", data, symbol("ncclAllReduce")[0] + _SYMBOL_VALUE, symbol("ncclGroupStart")[1])


def change_relocation(data: bytearray) -> None:
    at = file_offset(dynamic("DT_RELA")[1]) + _ADDEND
    struct.pack_into("<Q", data, at, struct.unpack_from("<Q", data, at)[0] + 1)


def change_needed(data: bytearray) -> None:
    at = data.index(b"\0libc.so.6\0")
    data[at : at + 11] = b"\0libX.so.6\0"


def change_constructors(data: bytearray) -> None:
    struct.pack_into("<Q", data, dynamic("DT_INIT_ARRAYSZ")[0] + 8, 0)


def change_stack(data: bytearray) -> None:
    """The stack becomes executable."""
    header = elf().header
    kinds = [segment["p_type"] for segment in elf().iter_segments()]
    at = header["e_phoff"] + kinds.index("PT_GNU_STACK") * header["e_phentsize"] + 4
    data[at] |= _EXECUTABLE


def forged(folder: Path, change: Callable[[bytearray], None]) -> Path:
    """The library with a change, signed as compile signs libraries."""
    data = bytearray(whole())
    change(data)
    assert data != whole()
    path = folder / "forged.so"
    path.write_bytes(data)
    sign(path)
    check_library(path)  # its own digest agrees
    return path


def test_the_code_of_a_library_is_proved() -> None:
    result = collc("verify", library("pair"))
    assert result.code == 0, result.err
    assert "\ncode: proved: equal to collc " in result.out
    assert result.out.endswith(": every claim of this library holds\n")
    value = json.loads(collc("verify", library("pair"), "--json").out)
    assert value["verified"] is True
    assert [one["proved"] for one in value["code"]] == [True]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (change_code, "code"),
        (change_exports, "constants"),
        (change_relocation, "constants"),
        (change_needed, "constants"),
        (change_constructors, "data"),
        (change_stack, "constants"),
    ],
)
def test_signed_changes_are_refused(tmp_path: Path, change: Callable[[bytearray], None], part: str) -> None:
    line = refused(collc("verify", forged(tmp_path, change)))
    assert f"({part}): it was changed and signed again" in line


def test_the_interface_for_python_refuses_them_too(tmp_path: Path) -> None:
    with Library(forged(tmp_path, change_code)) as changed, pytest.raises(RunError, match="signed again"):
        changed.verify()


def test_a_library_without_the_runtime_is_refused() -> None:
    """A library that contains only tables, plans and manifest. The checker accepts it."""
    name = next(iter(LIBRARIES))
    check_library(built(name))
    assert "differs from what its sources and tools make" in refused(collc("verify", built(name)))


def test_every_kind_of_host_library_links_again() -> None:
    """One that survives losses, one of several servers, and one of several sets of GPUs."""
    for name in ("odd:0-1/0-2", "2+2", "cores"):
        path = library(name)
        assert [one.proved for one in relink.check_code(path, check_library(path))] == [True], name


def without_proof(path: Path) -> str:
    """If verify cannot build the code again, its text claims no more than it proves."""
    result = collc("verify", path)
    assert result.code == 0, result.err
    assert "every claim" not in result.out
    assert "its code is not proved" in result.out.splitlines()[-1]
    value = json.loads(collc("verify", path, "--json").out)
    assert value["verified"] is False
    return next(line for line in result.out.splitlines() if line.startswith("code: "))


def test_another_compiler_proves_nothing_about_code() -> None:
    other = Compiler(find_cxx().path, "g++ (Elsewhere 99.1) 99.1", find_cxx().machine)
    with mock.patch.object(relink, "find_cxx", return_value=other):
        line = without_proof(library("pair"))
    assert line == (
        "code: only compared with the library's own digest: "
        f"{find_cxx().version} made it, and here is g++ (Elsewhere 99.1) 99.1"
    )


def test_another_version_and_other_sources_prove_nothing_about_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relink, "runtime_origin", lambda *_: "another")
    assert without_proof(library("pair")).endswith("other sources or tools than those here made it")
    monkeypatch.setattr(relink, "__version__", "99.0")
    assert without_proof(library("pair")).endswith("made it, and this is collc 99.0")
