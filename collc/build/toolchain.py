"""Finds the C++ compiler of the host target and asks for its version."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from functools import cache

from collc.errors import BuildError
from collc.process import find_program, run_captured, safe_environment, temporary_folder


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: its command, the first line of `--version`, the machine it builds for (x86_64-linux-gnu)."""

    path: str
    version: str
    machine: str = ""


@cache
def find_cxx() -> Compiler:
    """The compiler named by COLLC_CXX, else g++, else clang++.

    Raises:
        BuildError: if there is none, with what to install.
    """
    chosen = os.environ.get("COLLC_CXX")
    for name in [chosen] if chosen else ["g++", "clang++"]:
        path = find_program(name)
        if path:
            return Compiler(path, ask(path, "--version"), ask(path, "-dumpmachine"))
    if chosen:
        raise BuildError(f"COLLC_CXX names {chosen!r}, which is not a command", hint="set it to a C++17 compiler")
    raise BuildError("no C++ compiler found", hint="install g++ 10 or newer, or set COLLC_CXX")


@cache
def linker_version(compiler: Compiler) -> str:
    """The first line that the linker of a compiler prints about itself; empty if it prints none."""
    try:
        return ask(compiler.path, "-Wl,--version")
    except BuildError:
        return ""


def ask(path: str, option: str) -> str:
    """The first line of what the compiler at `path` answers to an option.

    Raises:
        BuildError: it does not run, or is no compiler.
    """
    where = f"COLLC_CXX={path}" if os.environ.get("COLLC_CXX") else path
    hint = "set COLLC_CXX to a C++17 compiler such as g++ 10 or newer"
    try:
        done = run_captured([path, option], environment=_plain_env(), seconds=60)
    except (OSError, subprocess.SubprocessError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise BuildError(f"cannot run it: {reason}", where=where, hint=hint) from None
    if done.returncode != 0 or not done.stdout:
        problem = f"`{option}` failed with status {done.returncode}" if done.returncode else f"`{option}` says nothing"
        raise BuildError(f"is not a C++ compiler: {problem}", where=where, hint=hint)
    return done.stdout.splitlines()[0].strip()


def _plain_env() -> dict[str, str]:
    """Without translations, so that versions and logs read the same everywhere."""
    return {**safe_environment(), "LC_ALL": "C"}


def run_tool(command: list[str], *, cwd: str | None = None) -> None:
    """Runs a compiler or linker in `cwd`, or else in an empty folder: the files in that of the user are not ours.

    Raises:
        BuildError: with the command, the status and the end of its log.
    """
    with temporary_folder() as empty:
        try:
            done = run_captured(command, cwd=cwd or empty, environment=_plain_env())
        except subprocess.SubprocessError as error:
            raise BuildError(str(error), where=command[0]) from None
    if done.returncode:
        log = (done.stderr or done.stdout).strip().splitlines()
        errors = [line for line in log if "error" in line.lower()] or log[-1:] or ["no output"]
        shown = " ".join(command)
        raise BuildError(
            f"{errors[0].strip()} [status {done.returncode}]",
            where=command[0],
            hint=f"the command was: {shown if len(shown) < 240 else shown[:237] + '...'}",
        )
