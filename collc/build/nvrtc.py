"""Finds NVRTC of CUDA 12, which still compiles for Pascal and Volta, and builds the kernels with it.

No nvcc older than 13 is on PyPI, and 13 dropped sm_60 and sm_70; NVRTC 12 is there and takes the same source.
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
    """A runtime compiler: its library, release (12.9), what identifies the build, its sm numbers in order."""

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
        """The oldest driver that loads what it builds."""
        return MINIMUM_DRIVER[int(self.release.split(".")[0])]


@dataclass(frozen=True)
class Compiled:
    """The files of one compilation in the cache."""

    cubin: Path
    ptx: Path
    log: Path


def nvrtc_path() -> Path | None:
    """libnvrtc.so.12 of COLLC_NVRTC, of the wheels (nvidia/cuda_nvrtc/lib), or of the newest CUDA 12 in /usr/local."""
    chosen = os.environ.get("COLLC_NVRTC")
    if chosen:
        return Path(chosen)
    folders = [root / "nvidia" / "cuda_nvrtc" / "lib" for root in site_packages()]
    system = Path(SYSTEM_FOLDERS)
    root = next(parent for parent in system.parents if "*" not in str(parent))
    folders += sorted(root.glob(str(system.relative_to(root))), reverse=True)
    return next((folder / LIBRARY for folder in folders if (folder / LIBRARY).is_file()), None)


def find_nvrtc() -> Nvrtc:
    """The NVRTC 12 of this machine.

    Raises:
        BuildError: if there is none, or it cannot be loaded.
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
        failed = library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        failed = failed or library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        failed = failed or library.nvrtcGetSupportedArchs(numbers)
    except (OSError, AttributeError) as error:
        raise BuildError(f"cannot load NVRTC: {error}", where=path, hint=INSTALL_NVRTC) from error
    if failed or major.value != 12:
        raise BuildError(f"is NVRTC {major.value}.{minor.value}, not 12", where=path, hint=INSTALL_NVRTC)
    # The library does not report its build, so its size identifies it.
    release = f"{major.value}.{minor.value}"
    version = f"NVRTC {release}, {Path(path).stat().st_size} bytes"
    return Nvrtc(path, release, version, tuple(str(n) for n in sorted(numbers)))


def stand_ins() -> Path:
    """The headers that take the place of the C++ library's."""
    return resource_dir("templates") / "nvrtc"


def compile_kernels(nvrtc: Nvrtc, architecture: str, source: str, extra: Sequence[str] = ()) -> Compiled:
    """The machine code of `source` for sm_`architecture`, the PTX that it came from, and ptxas' words about it.

    Raises:
        BuildError: NVRTC refuses the source.
    """
    headers = sorted((resource_dir("templates") / "include").rglob("*.h"))
    fixed = [path.read_bytes() for path in (*headers, *sorted(stand_ins().iterdir()))]
    key = content_key([nvrtc.version, architecture, *FLAGS, *extra, source, *fixed])

    def make(made: Path) -> None:
        made.with_name("device.cu").write_text(source, encoding="utf-8")
        worker = python_script(nvrtc_worker.__file__, nvrtc.path, "device.cu")
        places = [str(stand_ins().resolve()), made.name, "device.ptx", "device.log"]
        include = f"-I{(resource_dir('templates') / 'include').resolve()}"
        run_tool([*worker, *places, f"-arch=sm_{architecture}", *FLAGS, *extra, include], cwd=str(made.parent))

    label = f"code for sm_{architecture} by {nvrtc.label}"
    cubin = cached(key, "device.cubin", make, beside=("device.ptx", "device.log"), label=label)
    return Compiled(cubin, cubin.with_name("device.ptx"), cubin.with_name("device.log"))
