"""A library in place of the file libnccl.so.2, which PyTorch's libtorch_cuda.so needs and finds by its own path."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support import elf
from support.libraries import library
from support.nccl_names import OF_NCCL
from test_api_table import LEVEL

from collc.build.toolchain import find_cxx, run_tool


def build(source: Path, text: str, library: Path, *options: str) -> None:
    source.write_text(text, encoding="utf-8")
    library.parent.mkdir(exist_ok=True)
    run_tool([find_cxx().path, "-xc", "-w", "-shared", "-fPIC", str(source), *options, "-o", str(library)])


def test_a_program_that_needs_every_function_loads_the_library(tmp_path: Path) -> None:
    """Its functions are bound when it is loaded (-z now), as if it called all of them."""
    names = [f"nccl{name}" for name in OF_NCCL]
    nccl, torch = tmp_path / "nccl" / "libnccl.so.2", tmp_path / "torch" / "libtorch_cuda.so"
    build(
        tmp_path / "nccl.c",
        "".join(f"int {name}() {{ return 1; }}\n" for name in names),
        nccl,
        "-Wl,-soname,libnccl.so.2",
    )
    table = "".join(f"int {name}();\n" for name in names) + f"void *table[] = {{{', '.join(names)}}};\n"
    text = table + "int version(void) { int found = 0; ncclGetVersion(&found); return found; }\n"
    # Without -xnone the compiler would read the library as C.
    search = ("-Wl,-z,now", "-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN/../nccl", "-xnone", str(nccl))
    build(tmp_path / "torch.c", text, torch, *search)
    assert "libnccl.so.2" in elf.needed(torch)
    load = [sys.executable, "-c", f"import ctypes; print(ctypes.CDLL({str(torch)!r}).version())"]
    nccl.unlink()
    nccl.symlink_to(library("odd"))
    assert subprocess.run(load, capture_output=True, text=True, check=True).stdout == f"{LEVEL}\n"
