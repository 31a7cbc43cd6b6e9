"""Starts other programs, but never a program from the current folder unless the user names it.

For ``-m`` and ``-c``, Python searches the current folder before its library. An empty entry of PATH or PYTHONPATH also
means the current folder. A `ctypes.py` or a `g++` in some folder must not run only because a command starts there.
"""

from __future__ import annotations

import errno
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
    """Returns the command that runs `main()` of a module of this collc, independent of the current folder.

    Python's path keeps the entries of PYTHONPATH, virtual environments and editable installs, without the current
    folder.
    """
    return [sys.executable, "-P", str(_PACKAGE / "start.py"), module, *arguments]


def python_script(script: str | Path, *arguments: str) -> list[str]:
    """Returns the command that runs a file of collc that needs only the standard library."""
    return [sys.executable, "-I", str(Path(script).resolve()), *arguments]


def safe_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns an environment whose search paths do not depend on the current folder.

    Empty entries of PATH and PYTHONPATH are removed: they mean the current folder, mostly by accident
    (``PATH=$PATH:$UNSET``). Relative entries of PATH are removed too. Relative entries of PYTHONPATH become absolute,
    because somebody has written them on purpose.
    """
    result = dict(os.environ if environment is None else environment)
    if "PATH" in result:
        result["PATH"] = os.pathsep.join(_absolute(result["PATH"]))
    if "PYTHONPATH" in result:
        entries = [entry for entry in result["PYTHONPATH"].split(os.pathsep) if entry]
        result["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, entries))
    return result


def find_program(name: str) -> str | None:
    """Returns the absolute path of a command, or None.

    A name with a slash is a path. Other names are searched in PATH without its relative entries.
    """
    if os.path.dirname(name):
        path = shutil.which(name)
        return os.path.abspath(path) if path else None
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
    """Runs a tool without input and returns its status and its output.

    If this process is interrupted, the tool and all processes that it started end, whatever thread called this.

    Args:
        cwd: the working folder of the tool.
        environment: default: this process's, changed by `safe_environment`. TMPDIR becomes a folder that is removed
            afterwards.
        seconds: the maximum duration.

    Raises:
        OSError: the tool cannot be started.
        subprocess.SubprocessError: the tool took too long, or this process is ending.
    """
    with ExitStack() as stack:
        settings = dict(safe_environment() if environment is None else environment)
        # A killed compiler leaves temporary files behind. They are in a folder that is removed.
        with suppress(OSError):  # no such folder is possible; a tool that needs one will report it
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


class _SignalGate:
    """Holds back signals while code in `whole` runs.

    Attributes:
        depth: the number of nested `whole` blocks of the main thread.
        ending: the exception to raise after the last of them, or None.
    """

    depth = 0
    ending: BaseException | None = None


def interrupt(ending: BaseException) -> None:
    """Raises `ending` now, or, in a `whole` block, at the end of the outermost block. Signal handlers call this."""
    if _SignalGate.depth:
        _SignalGate.ending = ending
        return
    raise ending


@contextmanager
def whole() -> Iterator[None]:
    """Delays the exceptions of `interrupt` until the code inside is complete.

    For example, a started program must be noted so that it can be ended, and a folder must be removed completely.
    """
    if threading.current_thread() is not threading.main_thread():  # signals raise only in the main thread
        yield
        return
    _SignalGate.depth += 1
    try:
        yield
    finally:
        _SignalGate.depth -= 1
        if not _SignalGate.depth and _SignalGate.ending is not None:
            ending, _SignalGate.ending = _SignalGate.ending, None
            raise ending


@contextmanager
def environment(name: str, value: str | None) -> Iterator[None]:
    """Sets a variable of the environment (None: unsets it) while the code inside runs, then restores its old value."""
    old_value = os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if old_value is not None:
            os.environ[name] = old_value


@contextmanager
def temporary_folder(folder: Path | None = None, prefix: str = "collc-") -> Iterator[Path]:
    """Creates a folder and removes it afterwards, whatever ends the code inside.

    Args:
        folder: the folder for it; default: the system's folder for temporary files.
        prefix: the begin of its name.

    Raises:
        OSError: the folder cannot be created.
    """
    with whole():
        temporary = tempfile.TemporaryDirectory(dir=folder, prefix=prefix)
    try:
        yield Path(temporary.name)
    finally:
        with whole():
            temporary.cleanup()


def end_tools() -> None:
    """Ends the running tools and prevents the start of others, because this process is about to end."""
    _ENDING.set()
    with _LOCK:
        for process in _RUNNING:
            _kill(process)


def pause(seconds: float) -> None:
    """Waits in a loop that polls for something that another process does.

    Raises:
        OSError: this process is ending.
    """
    if _ENDING.wait(seconds):
        raise OSError(errno.ECANCELED, "interrupted")


def allow_tools() -> None:
    """Allows the start of tools again, because a new command begins in this process."""
    _ENDING.clear()


def _kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
