"""The runtime in a platform wheel is used only if it fits the machine, is intact, and was built from these sources."""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.cli import collc

from collc.build import prebuilt
from collc.build.account import BUILT, CACHE, WHEEL, accounted, current
from collc.build.prebuilt import INDEX, build_prebuilt, c_library, find_prebuilt, inputs_digest
from collc.build.runtime import Unit, runtime_units
from collc.build.toolchain import Compiler, find_cxx
from collc.compiler import CompileRequest, CompileResult, compile_topology
from collc.errors import BuildError
from collc.options import TargetKind

HOST = TargetKind.HOST
GPUS = "format: collc-topology/1\nname: {name}\ngpus: 2\nlinks: [[gpu0, gpu1, nvlink x1, 25]]\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which collc looks for the runtime of its wheel."""
    folder = tmp_path / "prebuilt"
    folder.mkdir()
    monkeypatch.setattr(prebuilt, "folder", lambda: folder)
    return folder


def fill(folder: Path, data: bytes = b"an object") -> dict[str, Any]:
    """An index that fits here, and the objects that it names."""
    compiler, here = find_cxx(), c_library()
    assert here is not None
    objects = {}
    for survives in (False, True):
        name = "host-survive" if survives else "host"
        (folder / f"{name}.o").write_bytes(data)
        digest = inputs_digest(runtime_units(HOST, compiler, survives=survives))
        objects[name] = {"file": f"{name}.o", "inputs": digest, "sha256": hashlib.sha256(data).hexdigest()}
    machine, glibc = compiler.machine.partition("-")[0], ".".join(map(str, here))
    index = {"format": prebuilt.FORMAT, "machine": machine, "glibc": glibc, "compiler": "g++ 1", "objects": objects}
    (folder / INDEX).write_text(json.dumps(index))
    return index


def found(survives: bool = False, compiler: Compiler | None = None) -> bytes | None:
    runtime = find_prebuilt(HOST, compiler or find_cxx(), survives=survives)
    return None if runtime is None else runtime.data


def test_a_whole_one_is_used(package: Path) -> None:
    assert found() is None, "nothing is there yet"
    fill(package)
    assert found() == found(survives=True) == b"an object"


def _object(name: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda index: index["objects"]["host"].update({name: value})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda index: index.update(machine="riscv64"), False),
        (lambda index: index.update(glibc="99.0"), False),
        (lambda index: index.update(format="collc-prebuilt/2"), False),
        (_object("inputs", "0" * 64), False),
        (_object("sha256", "0" * 64), True),
        (_object("file", "missing.o"), True),
        (_object("file", 7), True),
        (lambda index: index.update(glibc="new"), True),
        (lambda index: index.update(glibc=None), True),
        (lambda index: index.update(machine=None), True),
        (lambda index: index.update(objects=[]), True),
        (lambda index: index.pop("compiler"), True),
    ],
)
def test_others_are_not_used(
    package: Path, change: Callable[[dict[str, Any]], object], told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    index = fill(package)
    change(index)
    (package / INDEX).write_text(json.dumps(index))
    with caplog.at_level(logging.WARNING, "collc"):
        assert found() is None
    assert [record.message.startswith("the runtime that came with collc is damaged") for record in caplog.records] == (
        [True] * told
    )


@pytest.mark.parametrize("text", ["", "[]", "{", "nul\0", "{}", '"x"'])
def test_an_index_that_is_none(package: Path, text: str) -> None:
    fill(package)
    (package / INDEX).write_text(text)
    assert found() is None


def test_changed_bytes_are_not_used(package: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(package)
    (package / "host.o").write_bytes(b"another object")
    assert found() is None
    assert "host.o is not the file that was built" in caplog.text
    assert found(survives=True) == b"an object"


@pytest.mark.parametrize(
    "system", ["linux-musl", "alpine-linux-musl", "linux-gnux32", "linux-android", "apple-darwin", ""]
)
def test_compilers_for_other_systems(package: Path, system: str) -> None:
    index = fill(package)
    for same in ("linux-gnu", "pc-linux-gnu", "redhat-linux", "suse-linux", "conda-linux-gnu"):
        assert found(compiler=replace(find_cxx(), machine=f"{index['machine']}-{same}"))
    assert found(compiler=replace(find_cxx(), machine=f"{index['machine']}-{system}")) is None


def test_the_version_of_the_compiler_does_not_count(package: Path) -> None:
    """Only sources and flags do, and each of them."""
    fill(package)
    assert found(compiler=replace(find_cxx(), version="g++ 99")) == b"an object"


def test_sources_and_flags_count(tmp_path: Path) -> None:
    source = tmp_path / "room" / "a.cpp"
    source.parent.mkdir()
    source.write_text("int a;")
    unit = Unit("room", (source,))
    digests = {inputs_digest([unit]) for _ in range(2)}
    digests |= {inputs_digest([replace(unit, name="other")]), inputs_digest([replace(unit, level="-O1")])}
    digests |= {inputs_digest([replace(unit, flags=("-DX",))]), inputs_digest([unit, unit])}
    source.write_text("int b;")
    assert len(digests | {inputs_digest([unit])}) == 6


def build(tmp_path: Path, name: str, *, rebuild: bool = False) -> CompileResult:
    (tmp_path / f"{name}.yaml").write_text(GPUS.format(name=name))
    out = tmp_path / f"libcollc-{name}.so"
    request = CompileRequest(topology=str(tmp_path / f"{name}.yaml"), output=out, target=HOST, rebuild=rebuild)
    return compile_topology(request)


def objects(result: CompileResult) -> dict[str, str]:
    return {part.name: part.origin for part in result.parts if part.name.endswith(".o")}


def test_libraries_of_a_prebuilt_runtime(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite's cache contains the objects of the runtime; the cache of the libraries is empty."""
    assert build_prebuilt(package, [HOST]).startswith("manylinux_2_")
    monkeypatch.setenv("COLLC_CACHE", str(tmp_path / "cache"))
    first = build(tmp_path, "first")
    assert objects(first) == {"runtime.o": WHEEL, "tables.o": BUILT}
    assert {part.origin for part in first.parts if part.name == "library.so"} == {BUILT}
    assert objects(build(tmp_path, "second")) == {"runtime.o": CACHE, "tables.o": BUILT}
    assert objects(build(tmp_path, "first")) == {"runtime.o": CACHE, "tables.o": CACHE}
    library = str(first.library.path)
    assert f"; runtime: {find_cxx().version}" in json.loads(collc("inspect", library, "--json").out)["compiler"]
    assert collc("verify", library).code == 0
    assert collc("bench", library, "-b", "1K", "-e", "1K").code == 0
    # Its C++ library is inside, and all that it shows is what every library shows.
    names = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    assert {line.split()[-1].split("_")[0][:4] for line in names.splitlines()} <= {"nccl", "pncc", "coll"}


def test_a_runtime_that_does_not_link_is_compiled(
    package: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(package, b"no object at all")
    result = build(tmp_path, "unlinked")
    assert "cannot be linked here, so it is compiled" in caplog.text
    assert {"calls.o", "core.o", "tables.o"} <= set(objects(result))
    shown = json.loads(collc("inspect", str(result.library.path), "--json").out)
    assert shown["compiler"] == find_cxx().version
    assert collc("verify", str(result.library.path)).code == 0


def test_a_rebuild_uses_none(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(package)
    with accounted(rebuild=True):
        assert found() is None

    def refuse(unit: Unit, compiler: Compiler) -> Path:
        raise BuildError(f"would compile, and rebuild is {current().rebuild}")

    monkeypatch.setattr("collc.build.compile.compile_object", refuse)
    with pytest.raises(BuildError, match="rebuild is True"):
        build(tmp_path, "anew", rebuild=True)
