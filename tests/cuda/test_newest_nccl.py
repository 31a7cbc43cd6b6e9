"""Compares the exports and nccl.h of NCCL's newest wheel on PyPI with collc's header and table."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support import elf
from support.nccl_names import nccl_exports
from test_api_table import DOCS, rows

from collc.build.cache import cache_dir
from collc.build.toolchain import find_cxx, run_tool
from collc.resources import resource_dir

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DOCS.is_file(), reason="the docs are in the checkout, not in the wheel"),
]

WHEEL = "nvidia-nccl-cu13"
NEEDED = ("nvidia/nccl/include/nccl.h", "nvidia/nccl/lib/libnccl.so.2")
# The parts of CUDA's headers that nccl.h uses.
CUDA_HEADERS = {
    "cuda_runtime.h": "#include <stddef.h>\n#define CUDART_VERSION 13000\ntypedef struct CUstream_st *cudaStream_t;\n"
    "typedef struct CUevent_st *cudaEvent_t;\n",
    "cuda_fp16.h": "",
    "cuda_bf16.h": "",
}
OURS = resource_dir("templates") / "include" / "nccl.h"


@pytest.fixture(scope="module")
def nccl() -> Path:
    """The folder with nccl.h and libnccl.so.2 of the newest wheel, which the cache keeps."""
    folder = cache_dir() / "tests" / "nccl"
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", WHEEL, "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    try:
        done = subprocess.run(pip, capture_output=True, text=True, check=False, timeout=600)
    except subprocess.TimeoutExpired:
        pytest.skip(f"pip download {WHEEL} takes over ten minutes")
    if done.returncode:
        pytest.skip(f"pip download {WHEEL}: {done.stderr.strip().splitlines()[-1]}")
    wheel = max(folder.glob("*.whl"), key=lambda path: [int(one) for one in path.name.split("-")[1].split(".")])
    with zipfile.ZipFile(wheel) as archive:
        for name in NEEDED:
            archive.extract(name, folder)
    return folder / "nvidia" / "nccl"


def code_of(header: Path) -> str:
    """A header without its comments."""
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", header.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_a_library_defines_all_that_the_newest_nccl_exports(nccl: Path) -> None:
    found = elf.symbols(nccl / "lib" / "libnccl.so.2")
    names = {s.name for s in found if s["st_shndx"] != "SHN_UNDEF" and "nccl" in s.name[:5]}
    assert len(names) > 150
    assert names <= set(nccl_exports())


def test_the_table_has_every_function_of_the_newest_header(nccl: Path) -> None:
    declared = set(re.findall(r"\bp?(nccl[A-Z]\w*)\s*\([^()]*\)\s*;", code_of(nccl / "include" / "nccl.h")))
    assert len(declared) > 60
    assert declared <= {row.name for row in rows()}


def test_constants_and_signatures_of_our_header_are_those_of_the_newest(nccl: Path, tmp_path: Path) -> None:
    """A C file that includes NVIDIA's header and repeats ours: a difference is an error of the compiler."""
    for name, text in CUDA_HEADERS.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    ours = code_of(OURS)
    release = ("MAJOR", "MINOR", "PATCH", "SUFFIX", "VERSION_CODE", "COMM_NULL", "CONFIG_UNDEF_PTR", "CONFIG_MAGIC")
    constants = dict(re.findall(r"#define (NCCL_\w+) (\S+)\n", ours))
    constants |= dict(re.findall(r"\b(nccl\w+) = (\d+)[,\s]", ours))
    constants = {name: value for name, value in constants.items() if name.removeprefix("NCCL_") not in release}
    assert len(constants) > 45
    functions = re.findall(r"^COLLC_DECLARE\((.*?), (\w+),\s*\((.*?)\)\);", ours, re.DOTALL | re.MULTILINE)
    assert len(functions) > 30
    fields = re.search(r"typedef struct ncclConfig_v23000 \{(.*?)\}", ours, re.DOTALL)
    assert fields is not None
    lines = ['#include "nccl.h"', f"struct ours {{{fields[1]}}};"]
    for field in re.findall(r"(\w+);", fields[1]):
        lines.append(f'_Static_assert(offsetof(struct ours, {field}) == offsetof(ncclConfig_t, {field}), "{field}");')
    lines += [f'_Static_assert({name} == {value}, "{name}");' for name, value in constants.items()]
    for result, name, arguments in functions:
        lines += [f"{result} nccl{name}({arguments});", f"{result} pnccl{name}({arguments});"]
    source = tmp_path / "compare.c"
    source.write_text("\n".join([*lines, ""]), encoding="utf-8")
    folders = [f"-I{tmp_path}", f"-I{nccl / 'include'}"]
    run_tool([find_cxx().path, "-xc", "-std=c11", "-fsyntax-only", *folders, str(source)])
    # The comparison notices a difference.
    for text in ("_Static_assert(ncclHalf == 7);", "ncclResult_t ncclCommAbort(int);"):
        source.write_text(f'#include "nccl.h"\n{text}\n', encoding="utf-8")
        command = [find_cxx().path, "-xc", "-std=c11", "-fsyntax-only", *folders, str(source)]
        assert subprocess.run(command, capture_output=True, check=False).returncode != 0
