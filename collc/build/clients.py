"""Finds NCCL for a command, and has clients that open NCCL by hand open a library in its place.

LD_PRELOAD does not replace a library that a program opens with dlopen(). Such clients find NCCL as follows (their
sources were read in 2026-11):

- vLLM: `VLLM_NCCL_SO_PATH`, else the name libnccl.so.2 (vllm/utils/nccl.py);
- SGLang: `SGLANG_NCCL_SO_PATH`, else the name (srt/distributed/device_communicators/pynccl_wrapper.py);
- JAX: the path in the package nvidia.nccl, then the name, which is then the name of that file (jax_plugins/cuda and
  xla/tsl/cuda/nccl_stub.cc);
- XGBoost: the path in the package nvidia.nccl, else the name (python-package/xgboost/collective.py).

CuPy opens NCCL in the same way, but calls functions that the loader binds to a preloaded library.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from collc.build.preload import is_of_nccl_folder, nccl_folder

NCCL = "libnccl.so.2"
# Variables that clients read for the path of NCCL.
PATH_VARIABLES = ("VLLM_NCCL_SO_PATH", "SGLANG_NCCL_SO_PATH")


def named_nccl(environment: Mapping[str, str]) -> Path | None:
    """Returns the NCCL that a variable of a client names; None if none names a file."""
    for variable in PATH_VARIABLES:
        path = environment.get(variable, "")
        if os.path.isfile(path) and not is_of_nccl_folder(path):
            return Path(path).absolute()
    return None


def client_settings(library: str, wheel: Path | None, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns variables that make clients open `library` in place of NCCL.

    Args:
        library: the absolute path of a preloaded library. When it is loaded, it takes the name libnccl.so.2 from the
            folder that LD_LIBRARY_PATH names first.
        wheel: the NCCL of the wheel in the command's Python environment; None without one.
        environment: the environment of the command.
    """
    folder = nccl_folder(library, headers_of(wheel))
    if folder is None:
        return dict.fromkeys(PATH_VARIABLES, library)
    place = folder / "nvidia" / "nccl" / "lib"
    settings = dict.fromkeys(PATH_VARIABLES, str(place / NCCL))
    settings["LD_LIBRARY_PATH"] = _before(str(place), environment.get("LD_LIBRARY_PATH"))
    # Only XGBoost needs another package in front of nvidia.nccl.
    if wheel is not None and has_xgboost(wheel) and not hides_other_packages(wheel):
        settings["PYTHONPATH"] = _before(str(folder), environment.get("PYTHONPATH"))
    return settings


def headers_of(wheel: Path | None) -> Path | None:
    """Returns the folder of headers in NCCL's wheel, None if there is none."""
    folder = None if wheel is None else wheel.parent.parent / "include"
    return folder if folder is not None and folder.is_dir() else None


def has_xgboost(wheel: Path) -> bool:
    """Returns whether XGBoost is installed beside NCCL's wheel."""
    return (wheel.parents[3] / "xgboost").is_dir()


def hides_other_packages(wheel: Path) -> bool:
    """Returns whether nvidia.nccl.lib is a regular package, as in old wheels: no other folder can precede it."""
    return any((wheel.parents[depth] / "__init__.py").exists() for depth in range(3))


def _before(first: str, paths: str | None) -> str:
    """Returns a list of paths with `first` in front. An empty entry would mean the current folder."""
    return f"{first}:{paths}" if paths else first
