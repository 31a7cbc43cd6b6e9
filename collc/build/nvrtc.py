"""Finds NVRTC of CUDA 12, which still compiles for Pascal and Volta, and builds the kernels with it.

PyPI has no nvcc older than 13, and 13 dropped sm_60 and sm_70. PyPI has NVRTC 12, which compiles the same source.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from collc.build import nvrtc_worker
from collc.build.cache import cached, content_key
from collc.build.nvcc import MINIMUM_DRIVER, site_packages
from collc.build.toolchain import run_tool
from collc.errors import BuildError
from collc.process import python_script
from collc.resources import resource_dir

INSTALL_NVRTC = "pip install 'collc[cuda12]', or set COLLC_NVRTC to a libnvrtc.so.12"

SYSTEM_FOLDERS = "/usr/local/cuda-12*/lib64"
LIBRARY = "libnvrtc.so.12"
FLAGS = ("-std=c++17", "--ptxas-options=-v")


@dataclass(frozen=True)
class Nvrtc:
    """A runtime compiler: its library, release (12.9), a text that identifies its build, its sm numbers in order."""

    path: str
    release: str
    version: str
    architectures: tuple[str, ...]

    @property
    def label(self) -> str:
        """The compiler as a manifest names it."""
        return f"NVRTC {self.release}"

    @property
    def driver(self) -> str:
        """The oldest driver that loads its code."""
        return MINIMUM_DRIVER[int(self.release.split(".")[0])]


@dataclass(frozen=True)
class Compiled:
    """The files of one compilation in the cache."""

    cubin: Path
    ptx: Path
    log: Path


def nvrtc_path() -> Path | None:
    """Returns the path of libnvrtc.so.12; None if there is none.

    This is COLLC_NVRTC, else the library of the wheels (nvidia/cuda_nvrtc/lib), else of the newest CUDA 12 in
    /usr/local.
    """
    override = os.environ.get("COLLC_NVRTC")
    if override:
        return Path(override)
    folders = [root / "nvidia" / "cuda_nvrtc" / "lib" for root in site_packages()]
    system = Path(SYSTEM_FOLDERS)
    root = next(parent for parent in system.parents if "*" not in str(parent))
    folders += sorted(root.glob(str(system.relative_to(root))), reverse=True)
    return next((folder / LIBRARY for folder in folders if (folder / LIBRARY).is_file()), None)


def find_nvrtc() -> Nvrtc:
    """Returns the NVRTC 12 of this machine.

    Raises:
        BuildError: there is none, or it cannot be loaded.
    """
    path = nvrtc_path()
    if path is None:
        raise BuildError("no NVRTC 12 found among the installed wheels or in /usr/local", hint=INSTALL_NVRTC)
    return _examine(str(path))


@cache
def _examine(path: str) -> Nvrtc:
    try:
        library = ctypes.CDLL(path)
        major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        status = library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        status = status or library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        status = status or library.nvrtcGetSupportedArchs(numbers)
    except (OSError, AttributeError) as error:
        raise BuildError(f"cannot load NVRTC: {error}", where=path, hint=INSTALL_NVRTC) from error
    if status or major.value != 12:
        raise BuildError(f"is NVRTC {major.value}.{minor.value}, not 12", where=path, hint=INSTALL_NVRTC)
    # The library does not report its build, so its size identifies it.
    release = f"{major.value}.{minor.value}"
    version = f"NVRTC {release}, {Path(path).stat().st_size} bytes"
    return Nvrtc(path, release, version, tuple(str(n) for n in sorted(numbers)))


def stand_ins() -> Path:
    """Returns the folder of the headers that replace the headers of the C++ library."""
    return resource_dir("templates") / "nvrtc"


def compile_kernels(nvrtc: Nvrtc, architecture: str, source: str, extra: Sequence[str] = ()) -> Compiled:
    """Returns the machine code of `source` for sm_`architecture`, its PTX and its log, built or from the cache.

    Args:
        extra: additional options of NVRTC.

    Raises:
        BuildError: NVRTC refuses the source.
    """
    headers = sorted((resource_dir("templates") / "include").rglob("*.h"))
    contents = [path.read_bytes() for path in (*headers, *sorted(stand_ins().iterdir()))]
    key = content_key([nvrtc.version, architecture, *FLAGS, *extra, source, *contents])

    def make(output: Path) -> None:
        output.with_name("device.cu").write_text(source, encoding="utf-8")
        worker = python_script(nvrtc_worker.__file__, nvrtc.path, "device.cu")
        paths = [str(stand_ins().resolve()), output.name, "device.ptx", "device.log"]
        include = f"-I{(resource_dir('templates') / 'include').resolve()}"
        run_tool([*worker, *paths, f"-arch=sm_{architecture}", *FLAGS, *extra, include], cwd=str(output.parent))

    label = f"code for sm_{architecture} by {nvrtc.label}"
    cubin = cached(key, "device.cubin", make, beside=("device.ptx", "device.log"), label=label)
    return Compiled(cubin, cubin.with_name("device.ptx"), cubin.with_name("device.log"))
