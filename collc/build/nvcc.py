"""Finds nvcc on PATH, in a CUDA installation, or in the wheels of `pip install 'collc[cuda]'`."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from collc.errors import BuildError
from collc.process import find_program, run_captured

INSTALL_NVCC = "pip install 'collc[cuda]', or put a CUDA 13 nvcc on PATH, or set COLLC_NVCC"

SYSTEM_CUDA = Path("/usr/local/cuda")

# The oldest driver that runs code of a CUDA major version (NVIDIA, "CUDA Compatibility", table of minimum drivers).
MINIMUM_DRIVER = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}


@dataclass(frozen=True)
class Nvcc:
    """A CUDA compiler: its path, its release (13.0), the line that identifies its build, its sm numbers in order."""

    path: str
    release: str
    version: str
    architectures: tuple[str, ...]

    @property
    def label(self) -> str:
        """The compiler as a manifest names it."""
        return f"nvcc {self.release}"

    @property
    def major(self) -> int:
        """The major version of CUDA."""
        return int(self.release.split(".")[0])

    @property
    def driver(self) -> str:
        """The oldest driver that loads its code; "unknown" for a major version that is not in the table."""
        return MINIMUM_DRIVER.get(self.major, "unknown")

    def tool(self, name: str) -> str:
        """Returns the path of another tool of CUDA.

        The tool is next to nvcc; if nvcc is a script in another folder, the tool is on PATH or in a wheel. If it is
        nowhere, the result is the name.
        """
        path = Path(self.path).resolve().with_name(name)
        if path.is_file():
            return str(path)
        wheels = [root / "nvidia" / "cu13" / "bin" / name for root in site_packages()]
        return find_program(name) or next((str(tool) for tool in wheels if tool.is_file()), name)


def site_packages() -> list[Path]:
    """Returns the folders whose subfolder `nvidia` contains the CUDA wheels of pip."""
    return sorted({Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")})


def nvcc_path() -> Path | None:
    """Returns the path of nvcc; None if there is none.

    Looks at COLLC_NVCC, PATH, CUDA_HOME, CUDA_PATH, /usr/local/cuda and the wheels (nvidia/cu13/bin or
    nvidia/cuda_nvcc/bin), in this order.
    """
    override = os.environ.get("COLLC_NVCC")
    if override:
        return Path(override)
    on_path = find_program("nvcc")
    if on_path:
        return Path(on_path)
    homes = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    homes.append(SYSTEM_CUDA)
    homes += [root / "nvidia" / name for root in site_packages() for name in ("cu13", "cuda_nvcc")]
    return next((home / "bin" / "nvcc" for home in homes if (home / "bin" / "nvcc").is_file()), None)


def find_nvcc() -> Nvcc:
    """Returns the CUDA compiler of this machine.

    Raises:
        BuildError: there is none, or it does not run.
    """
    path = nvcc_path()
    if path is None:
        raise BuildError("no nvcc found on PATH, in CUDA_HOME or among the installed wheels", hint=INSTALL_NVCC)
    return _examine(str(path))


@cache
def _examine(path: str) -> Nvcc:
    version = _ask(path, "--version")
    codes = re.findall(r"^sm_(\d+)$", _ask(path, "--list-gpu-code"), re.MULTILINE)
    release = re.search(r"release (\d+\.\d+)", version)
    if release is None or not codes:
        raise BuildError("its answer to --version is not nvcc's", where=path, hint=INSTALL_NVCC)
    return Nvcc(path, release[1], version.strip().splitlines()[-1], tuple(sorted(codes, key=int)))


def _ask(path: str, option: str) -> str:
    """Returns the answer of nvcc to an option; raises BuildError if nvcc does not run within 60 seconds or fails."""
    try:
        result = run_captured([path, option], seconds=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"cannot run nvcc: {error}", where=path, hint=INSTALL_NVCC) from error
    if result.returncode != 0:
        raise BuildError(f"{option} failed with status {result.returncode}", where=path, hint=INSTALL_NVCC)
    return result.stdout
