"""The wheel of this platform in an empty environment: the first library compiles only its tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from collc.build.toolchain import find_cxx

ROOT = Path(__file__).parents[2]
PAIR = "format: collc-topology/1\nname: pair\ngpus: 2\nlinks: [[gpu0, gpu1, nvlink x1, 25]]\n"
NAMES = {f"{target}{survive}.o" for target in ("host", "cuda") for survive in ("", "-survive")} | {"prebuilt.json"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / "hatch_build.py").is_file(), reason="the sources are not beside these tests"),
]


def made(folder: Path, **settings: str) -> Path:
    """The wheel that pip builds of the sources with these environment variables."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--wheel-dir", str(folder), str(ROOT)], check=True, env={**os.environ, **settings})
    (wheel,) = folder.glob("*.whl")
    return wheel


def prebuilt_files(wheel: Path) -> set[str]:
    names = zipfile.ZipFile(wheel).namelist()
    assert "collc/_data/templates/runtime/api/run.cpp" in names
    return {name.split("/")[-1] for name in names if name.startswith("collc/_data/prebuilt/")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("wheel"), HATCH_BUILD_HOOK_ENABLE_CUSTOM="true")


def test_the_wheel_for_all_platforms_holds_sources_alone(tmp_path: Path) -> None:
    wheel = made(tmp_path)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert prebuilt_files(wheel) == set()


def test_the_wheel_of_this_platform(wheel: Path) -> None:
    assert prebuilt_files(wheel) == NAMES
    index = json.loads(zipfile.ZipFile(wheel).read("collc/_data/prebuilt/prebuilt.json"))
    machine = find_cxx().machine.partition("-")[0]
    assert wheel.name.endswith(f"-py3-none-manylinux_{index['glibc'].replace('.', '_')}_{machine}.whl")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, str(wheel)], check=True)
    return folder / "bin" / "collc"


def compiled(program: Path, folder: Path, *options: str) -> dict[str, Any]:
    (folder / "pair.yaml").write_text(PAIR)
    settings = {"PATH": os.environ["PATH"], "HOME": str(folder), "COLLC_CACHE": str(folder / "cache")}
    command = [str(program), "compile", "pair.yaml", "--target", "host", "-o", "libcollc-pair.so", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=settings, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def objects(result: dict[str, Any]) -> dict[str, str]:
    return {part["part"]: part["from"] for part in result["parts"] if part["part"].endswith(".o")}


def test_a_first_library_compiles_its_tables_alone(installed: Path, tmp_path: Path) -> None:
    assert objects(compiled(installed, tmp_path)) == {"runtime.o": "wheel", "tables.o": "built"}
    assert objects(compiled(installed, tmp_path, "--tune-candidates")) == {"runtime.o": "cache", "tables.o": "built"}
    library = str(tmp_path / "libcollc-pair.so")
    for command in ("verify", "inspect", "bench"):
        sizes = ["-b", "1K", "-e", "64K"] if command == "bench" else []
        subprocess.run([str(installed), command, library, *sizes], check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)
    assert objects(compiled(installed, tmp_path, "--survive", "1")) == {"runtime.o": "wheel", "tables.o": "built"}


def test_a_rebuild_compiles_the_runtime(installed: Path, tmp_path: Path) -> None:
    compiled(installed, tmp_path)
    parts = compiled(installed, tmp_path, "--rebuild")["parts"]
    assert {part["from"] for part in parts} == {"built"}
    assert {"calls.o", "core.o", "host_reduce_kernels.o", "tables.o"} <= {part["part"] for part in parts}


def test_changed_sources_are_compiled(installed: Path, tmp_path: Path) -> None:
    """Last: it changes the installation."""
    (source,) = installed.parents[1].glob("lib/python*/site-packages/collc/_data/templates/runtime/base/log.cpp")
    source.write_text(source.read_text() + "// changed\n")
    assert {"calls.o", "core.o", "tables.o"} <= set(objects(compiled(installed, tmp_path)))
