"""How collc starts other programs: never one that merely lies in the current folder.

Python puts the current folder before its own library for ``-m`` and ``-c``, and an empty entry of PATH or PYTHONPATH
means the current folder too. A `ctypes.py` or a `g++` that somebody left there must not run because a command was given
there.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent

_LOCK = threading.Lock()
_RUNNING: set[subprocess.Popen[str]] = set()
_ENDING = threading.Event()


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


def run_captured(
    command: Sequence[str],
    *,
    cwd: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a tool without input and returns what it says; it ends with everything that it started if this process is
    interrupted, from whatever thread it was called.

    Args:
        environment: by default this process's, made safe.
        seconds: how long it may take.

    Raises:
        OSError: it cannot be started.
        subprocess.SubprocessError: it took too long, or this process is ending.
    """
    with _LOCK:
        if _ENDING.is_set():
            raise subprocess.SubprocessError("interrupted")
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=cwd,
            env=safe_environment() if environment is None else environment,
            process_group=0,
        )
        _RUNNING.add(process)
    try:
        out, err = process.communicate(timeout=seconds)
    except BaseException:
        _kill(process)
        process.communicate()
        raise
    finally:
        with _LOCK:
            _RUNNING.discard(process)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def end_tools() -> None:
    """Ends the tools that run, and lets no other start: this process is about to end."""
    _ENDING.set()
    with _LOCK:
        for process in _RUNNING:
            _kill(process)


def allow_tools() -> None:
    """A new command begins in this process."""
    _ENDING.clear()


def _kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
