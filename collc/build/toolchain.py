"""Finds the C++ compiler and its version, and runs compilers and linkers."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from functools import cache

from collc.errors import BuildError
from collc.process import find_program, run_captured, safe_environment, temporary_folder


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: its path, the first line of `--version`, the machine that it builds for (x86_64-linux-gnu)."""

    path: str
    version: str
    machine: str = ""


@cache
def find_cxx() -> Compiler:
    """Returns the compiler that COLLC_CXX names; without the variable g++, else clang++.

    Raises:
        BuildError: there is no compiler, or it does not run. The hint says what to install.
    """
    override = os.environ.get("COLLC_CXX")
    for name in [override] if override else ["g++", "clang++"]:
        path = find_program(name)
        if path:
            return Compiler(path, ask(path, "--version"), ask(path, "-dumpmachine"))
    if override:
        raise BuildError(f"COLLC_CXX names {override!r}, which is not a command", hint="set it to a C++17 compiler")
    raise BuildError("no C++ compiler found", hint="install g++ 10 or newer, or set COLLC_CXX")


@cache
def linker_version(compiler: Compiler) -> str:
    """Returns the first line of the version that the linker of a compiler prints; empty if it prints none."""
    try:
        return ask(compiler.path, "-Wl,--version")
    except BuildError:
        return ""


def ask(path: str, option: str) -> str:
    """Returns the first line of the answer of a compiler to an option.

    Args:
        path: the path of the compiler.

    Raises:
        BuildError: the compiler does not run within 60 seconds, fails, or prints nothing.
    """
    where = f"COLLC_CXX={path}" if os.environ.get("COLLC_CXX") else path
    hint = "set COLLC_CXX to a C++17 compiler such as g++ 10 or newer"
    try:
        result = run_captured([path, option], environment=_tool_environment(), seconds=60)
    except (OSError, subprocess.SubprocessError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise BuildError(f"cannot run it: {reason}", where=where, hint=hint) from None
    if result.returncode != 0 or not result.stdout:
        failure = f"failed with status {result.returncode}" if result.returncode else "says nothing"
        raise BuildError(f"is not a C++ compiler: `{option}` {failure}", where=where, hint=hint)
    return result.stdout.splitlines()[0].strip()


def _tool_environment() -> dict[str, str]:
    """Returns an environment without translations, so that versions and logs are in English everywhere."""
    return {**safe_environment(), "LC_ALL": "C"}


def run_tool(command: list[str], *, cwd: str | None = None) -> None:
    """Runs a compiler or linker.

    Args:
        cwd: the folder to run it in. The default is an empty folder, so that files in the user's folder have no effect.

    Raises:
        BuildError: the tool fails. The error has the command, the status and one line of its log.
    """
    with temporary_folder() as empty:
        try:
            result = run_captured(command, cwd=cwd or empty, environment=_tool_environment())
        except subprocess.SubprocessError as error:
            raise BuildError(str(error), where=command[0]) from None
    if result.returncode:
        log = (result.stderr or result.stdout).strip().splitlines()
        errors = [line for line in log if "error" in line.lower()] or log[-1:] or ["no output"]
        text = " ".join(command)
        raise BuildError(
            f"{errors[0].strip()} [status {result.returncode}]",
            where=command[0],
            hint=f"the command was: {text if len(text) < 240 else text[:237] + '...'}",
        )
