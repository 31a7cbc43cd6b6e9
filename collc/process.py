"""How collc starts other programs: never one that merely lies in the current folder.

Python puts the current folder before its own library for ``-m`` and ``-c``, and an empty entry of PATH or PYTHONPATH
means the current folder too. A `ctypes.py` or a `g++` that somebody left there must not run because a command was given
there.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def python_module(module: str, *arguments: str) -> list[str]:
    """The command that runs `main()` of a module of this collc, wherever it is installed and whatever the folder.

    What PYTHONPATH, virtual environments and editable installs add to the path stays; the current folder does not join.
    """
    return [sys.executable, "-P", str(_PACKAGE / "start.py"), module, *arguments]


def python_script(script: str | Path, *arguments: str) -> list[str]:
    """The command that runs a file of collc which needs the standard library alone."""
    return [sys.executable, "-I", str(Path(script).resolve()), *arguments]


def safe_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment whose search paths name no folder by where a process happens to stand.

    Entries of PATH and PYTHONPATH that are empty mean the current folder, and mostly by accident
    (``PATH=$PATH:$UNSET``); they go. A relative entry of PYTHONPATH stays, made absolute: somebody wrote it.
    """
    kept = dict(os.environ if environment is None else environment)
    if "PATH" in kept:
        kept["PATH"] = os.pathsep.join(_absolute(kept["PATH"]))
    if "PYTHONPATH" in kept:
        named = [entry for entry in kept["PYTHONPATH"].split(os.pathsep) if entry]
        kept["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, named))
    return kept


def find_program(name: str) -> str | None:
    """The absolute path of a command: of PATH without its relative entries, or of a name with a slash as it stands."""
    if os.path.dirname(name):
        found = shutil.which(name)
        return os.path.abspath(found) if found else None
    return shutil.which(name, path=os.pathsep.join(_absolute(os.environ.get("PATH", os.defpath))) or os.devnull)


def _absolute(path: str) -> list[str]:
    return [entry for entry in path.split(os.pathsep) if os.path.isabs(entry)]
