"""Starts other programs, but never one from the current folder unless it was named.

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
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
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
    """An environment whose search paths do not depend on the current folder.

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
    """The absolute path of a command: of PATH without its relative entries, or of a name with a slash, as it is."""
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
        environment: by default this process's, made safe; TMPDIR is a folder that is removed afterwards.
        seconds: how long it may take.

    Raises:
        OSError: it cannot be started.
        subprocess.SubprocessError: it took too long, or this process is ending.
    """
    with ExitStack() as stack:
        settings = dict(safe_environment() if environment is None else environment)
        # A compiler that is killed leaves its temporary files: in a folder that goes with it.
        with suppress(OSError):  # there is none; a tool that needs one will say so
            settings["TMPDIR"] = str(stack.enter_context(temporary_folder()))
        return _run_captured(command, cwd, settings, seconds)


def _run_captured(
    command: Sequence[str], cwd: str | Path | None, environment: Mapping[str, str], seconds: float | None
) -> subprocess.CompletedProcess[str]:
    with whole(), _LOCK:
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
            env=environment,
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


class _Held:
    """Signals that wait until what must not be interrupted is done."""

    depth = 0
    ending: BaseException | None = None


def interrupt(ending: BaseException) -> None:
    """For a handler of signals: raises `ending` now, or as soon as what is `whole` is done."""
    if _Held.depth:
        _Held.ending = ending
        return
    raise ending


@contextmanager
def whole() -> Iterator[None]:
    """A signal does not end what stands inside halfway: a program that was started belongs to nobody before its place
    is noted, and a folder that is being removed would stay."""
    if threading.current_thread() is not threading.main_thread():  # where signals raise nothing
        yield
        return
    _Held.depth += 1
    try:
        yield
    finally:
        _Held.depth -= 1
        if not _Held.depth and _Held.ending is not None:
            ending, _Held.ending = _Held.ending, None
            raise ending


@contextmanager
def environment(name: str, value: str | None) -> Iterator[None]:
    """Gives a variable of the environment a value (None: unsets it) for what is started meanwhile, then its old one."""
    before = os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


@contextmanager
def temporary_folder(folder: Path | None = None, prefix: str = "collc-") -> Iterator[Path]:
    """A new folder in `folder` (by default the system's for temporary files), gone afterwards whatever ends this.

    Raises:
        OSError: it cannot be made.
    """
    with whole():
        made = tempfile.TemporaryDirectory(dir=folder, prefix=prefix)
    try:
        yield Path(made.name)
    finally:
        with whole():
            made.cleanup()


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
