"""Finds the library of a command that names none, and the NCCL that a library forwards to."""

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
    """Returns the named library, or the only libcollc-*.so of the current folder.

    Raises:
        UsageError: the named file does not exist, or the folder has no library, several libraries, or a library that
            another user may have written (it would be run).
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
    """Returns a text if users other than this one and root may have written a file, else an empty text."""
    for what, where in (("it", path), ("the folder", path.resolve().parent)):
        found = where.stat()
        if found.st_uid not in (os.geteuid(), 0):
            return f"{what} belongs to another user"
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            return f"{what} may be written by everybody"
    return ""


def find_wheel_nccl(program: str, environment: Mapping[str, str]) -> Path | None:
    """Returns the NCCL of PyTorch's wheels in the Python environment of `program`, or None.

    PyTorch finds it by its own search path, which other libraries do not use, and loads it after a preloaded library.
    So a preloaded library must load it first, by its path. Otherwise the library has no NCCL to forward calls to, and
    NCCL's calls to itself reach the preloaded library.
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
