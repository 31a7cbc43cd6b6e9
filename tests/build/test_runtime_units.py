"""The units that the runtime is compiled in: every file in one of them, none with a warning."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from collc.build import runtime
from collc.build.objects import COMPILE_FLAGS, compile_object
from collc.build.runtime import CALLS, HOT, TARGET_ROOMS, UNITS, runtime_dir, runtime_units
from collc.build.toolchain import find_cxx
from collc.errors import BuildError
from collc.options import TargetKind


@pytest.mark.parametrize("machine", ["x86_64-linux-gnu", "aarch64-linux-gnu"])
@pytest.mark.parametrize("kind", list(TargetKind))
def test_every_file_is_in_one_unit(kind: TargetKind, machine: str) -> None:
    """But for the loops of reductions, once for each instruction set."""
    units = runtime_units(kind, replace(find_cxx(), machine=machine))
    assert len({unit.name for unit in units}) == len(units)
    assert all(unit.files for unit in units)
    files = Counter(path for unit in units for path in unit.files)
    others = {room for other, rooms in TARGET_ROOMS.items() if other is not kind for room in rooms}
    assert set(files) == {path for path in runtime_dir().glob("*/*.cpp") if path.parent.name not in others}
    twice = {"reduce_kernels"} if kind is TargetKind.HOST and machine.startswith("x86_64") else set()
    assert {path.stem for path, times in files.items() if times > 1} == twice


@pytest.mark.parametrize("kind", list(TargetKind))
def test_what_calls_execute_is_in_one_unit(kind: TargetKind) -> None:
    """So that the compiler sees it together, at its level: the other rooms take little time and run once."""
    there = {f"{path.parent.name}_{path.stem}" for path in runtime_dir().glob("*/*.cpp")}
    assert there >= HOT, "files that calls execute have other names now"
    units = {unit.name: unit for unit in runtime_units(kind, find_cxx())}
    rooms = {room for other, named in TARGET_ROOMS.items() if other is not kind for room in named}
    wanted = {name for name in HOT if name.partition("_")[0] not in rooms}
    assert {f"{path.parent.name}_{path.stem}" for path in units[CALLS].files} == wanted
    assert units[CALLS].level == "-O2"


def test_a_room_is_in_one_unit_and_none_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rooms = [room for members, _ in UNITS.values() for room in members]
    assert len(rooms) == len(set(rooms))
    for room in (*rooms, "cellar"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "a.cpp").touch()
    monkeypatch.setattr(runtime, "runtime_dir", lambda: tmp_path)
    with pytest.raises(BuildError):
        runtime_units(TargetKind.HOST, find_cxx())
    (tmp_path / "cellar" / "a.cpp").unlink()
    assert runtime_units(TargetKind.HOST, find_cxx())


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(TargetKind))
def test_no_unit_has_a_warning(kind: TargetKind) -> None:
    for unit in runtime_units(kind, find_cxx()):
        compile_object(unit, find_cxx(), (*COMPILE_FLAGS, unit.level, "-Wall", "-Wextra", "-Werror"))
