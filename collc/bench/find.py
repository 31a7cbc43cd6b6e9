"""The library that a command uses when none is named, and the NCCL that it forwards to."""

from __future__ import annotations

import os
import shutil
import site
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from collc.errors import UsageError
from collc.inputs import open_input


def find_library(named: Path | None) -> Path:
    """The named library, or the one libcollc-*.so of the current folder.

    Raises:
        UsageError: if the file does not exist, or there is none or more than one to choose from, or the one that nobody
            named may be another user's: what is found here is run.
        CollcError: it is not a regular file.
    """
    if named is not None:
        if named.is_dir():
            raise UsageError("this is a folder, not a library", where=str(named), hint="name the library in it")
        if not named.exists():
            raise UsageError("no such library", where=str(named), hint="build one with `collc compile TOPO`")
        open_input(named).close()
        return named
    found = sorted(Path().glob("libcollc-*.so"))
    if not found:
        raise UsageError("no libcollc-*.so here", hint="build one with `collc compile TOPO`, or name it")
    if len(found) > 1:
        raise UsageError(f"{len(found)} libraries here: {', '.join(map(str, found))}", hint="name one")
    others = whose(found[0])
    if others:
        raise UsageError(f"{others}, and running it is not safe", where=str(found[0]), hint="name it to run it")
    return found[0]


def whose(path: Path) -> str:
    """Users other than this one and the superuser who can have placed or written the file; "" if none."""
    for what, where in (("it", path), ("the folder", path.resolve().parent)):
        found = where.stat()
        if found.st_uid not in (os.geteuid(), 0):
            return f"{what} belongs to another user"
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            return f"{what} may be written by everybody"
    return ""


def find_wheel_nccl(program: str, environment: Mapping[str, str]) -> Path | None:
    """The NCCL that PyTorch's wheels bring, in the Python environment that `program` belongs to; None without one.

    PyTorch finds it by a path of its own that no other library searches, and loads it after a preloaded one. A
    preloaded library that did not load it first, by its path, has no NCCL to hand calls to, and NCCL's calls to itself
    then reach the preloaded library.
    """
    found = shutil.which(program, path=environment.get("PATH"))
    prefixes = [Path(found).absolute().parent.parent] if found else []
    prefixes += [Path(environment[name]) for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environment.get(name)]
    prefixes += [Path(sys.prefix)]
    folders = [
        packages
        for prefix in dict.fromkeys(prefixes)
        for root in (prefix, prefix / "local")
        for packages in sorted(root.glob("lib*/python3*/*-packages"), reverse=True)
    ]
    if site.ENABLE_USER_SITE:
        folders.append(Path(site.getusersitepackages()))
    for folder in folders:
        library = folder / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
        if os.access(library, os.R_OK):
            return library
    return None
