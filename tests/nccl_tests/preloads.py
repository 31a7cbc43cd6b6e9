"""Libraries that stand between a program written for GPUs and a library of the host target."""

from __future__ import annotations

import os
from pathlib import Path

from support.libraries import shared_library

HERE = Path(__file__).parent


def cuda_runtime(major: int = 13) -> Path:
    """The stand-in for CUDA's runtime, with the symbol versions of a CUDA release."""
    return shared_library(HERE / "cuda_runtime.c", f"-Wl,-soname,libcudart.so.{major}", "-Wl,--default-symver")


def environment(folder: Path, library: Path, *before: str) -> dict[str, str]:
    """Returns an environment with a stand-in for CUDA's runtime on host memory, and `library` as NCCL.

    `folder` gets links under the names that programs are linked with; `before` are sources of this folder, preloaded
    in this order. Checked calls are counted in `folder/checked`.
    """
    runtimes = {f"libcudart.so.{major}": cuda_runtime(major) for major in (12, 13)}
    for name, file in (runtimes | {"libnccl.so": library, "libnccl.so.2": library}).items():
        link = folder / name
        link.unlink(missing_ok=True)
        link.symlink_to(file)
    first = [str(shared_library(HERE / name)) for name in before]
    paths = [str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {
        "LD_PRELOAD": ":".join([*first, str(library)]),
        "LD_LIBRARY_PATH": ":".join(paths),
        "COLLC_CHECKED_CALLS": str(folder / "checked"),
    }


def counts(folder: Path) -> dict[str, int]:
    """Regions checked and skipped, and elements compared and found wrong, over all processes."""
    total = dict.fromkeys(("regions", "elements", "wrong", "skipped"), 0)
    for line in (folder / "checked").read_text(encoding="utf-8").splitlines():
        for part in line.removeprefix("checked ").split(", "):
            number, name = part.split()
            total[name] += int(number)
    return total
