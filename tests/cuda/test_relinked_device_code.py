"""Device code of a library is built again and compared (collc.build.relink); compilers are replaced by known bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from test_cuda_runtime import library

from collc.build import relink
from collc.build.cuda import DeviceCode
from collc.build.fatbin import Image
from collc.checker.library import Library, check_library
from collc.errors import BuildError, RunError

BODY = b"kernels!"
FATBIN = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(BODY)) + BODY
COMPILER, ORIGIN = "nvcc 13.0", "kernels of this package"


@dataclass
class Case:
    """A library with device code, and the output of the compilers here."""

    path: Path
    library: Library
    made: DeviceCode

    def check(self) -> relink.Evidence:
        return relink._check_device_code(self.path, self.library, relink._device_of(self.path, self.library))


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    path, fatbin = tmp_path / "device.so", tmp_path / "made.fatbin"
    # The bytes that only look like the beginning of a fatbin stand at no multiple of 16.
    path.write_bytes(b"\x7fELF" + FATBIN[:8] + bytes(4) + FATBIN)
    fatbin.write_bytes(FATBIN)
    made = DeviceCode(fatbin, (Image("elf", "80", fatbin, COMPILER, "12.0"),))
    held = check_library(library())
    sources = {**held.manifest["sources"], "device": ORIGIN}
    held = replace(held, manifest={**held.manifest, "device_code": made.rows(), "sources": sources})
    found = Case(path, held, made)
    monkeypatch.setattr(relink, "device_origin", lambda *_: ORIGIN)
    monkeypatch.setattr(relink, "build_device_code", lambda *_: found.made)
    return found


def test_equal_device_code_is_proved(case: Case) -> None:
    evidence = case.check()
    assert evidence.proved
    assert evidence.why.endswith(f"kernels, built again by {COMPILER}")


def other_bytes(case: Case) -> None:
    case.made.fatbin.write_bytes(FATBIN[:-1] + b"?")


def another_chip(case: Case) -> None:
    case.made = replace(case.made, images=(replace(case.made.images[0], sm="90"),))


@pytest.mark.parametrize("change", [other_bytes, another_chip])
def test_other_device_code_is_refused(case: Case, change: Callable[[Case], None]) -> None:
    change(case)
    with pytest.raises(RunError, match="its device code is not what its sources and tools make"):
        case.check()


def test_a_list_of_device_code_that_is_no_list_is_refused(case: Case) -> None:
    case.library.manifest["device_code"][0]["driver"] = '12.0"; .incbin "/etc/passwd'
    with pytest.raises(RunError, match="lists device code for no chip or driver"):
        case.check()


def missing(*_: Any) -> DeviceCode:
    raise BuildError("nvcc is not here")


def test_without_its_compilers_it_is_not_proved(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relink, "build_device_code", missing)
    evidence = case.check()
    assert not evidence.proved
    assert evidence.why == "nvcc is not here"


def test_of_other_sources_it_is_not_proved(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relink, "device_origin", lambda *_: "others")
    monkeypatch.setattr(relink, "build_device_code", missing)  # nobody builds what cannot be equal
    evidence = case.check()
    assert not evidence.proved
    assert "nvcc" not in evidence.why


def test_bytes_without_a_fatbin_are_not_proved(case: Case) -> None:
    case.path.write_bytes(b"\x7fELF" + FATBIN)  # at no multiple of 16
    evidence = case.check()
    assert (evidence.proved, evidence.why) == (False, "it cannot be read")
