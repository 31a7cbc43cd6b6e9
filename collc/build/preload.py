"""Prepares a library for LD_PRELOAD, and checks that the loader will load it into a command in place of NCCL.

The dynamic loader splits LD_PRELOAD at spaces and colons, expands `$ORIGIN` and similar names, and goes on without a
library that it cannot load. A job would then silently measure and train with another library. So these functions check
before the command starts whatever can be checked then.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from collc.build.cache import CacheProblem, content_key, safe_folder
from collc.errors import CollcError, RunError
from collc.inputs import open_input

# Paths that the loader takes literally in a list, and prints literally in messages and in its output.
_LITERAL_PATH = re.compile(r"[A-Za-z0-9_./+,@%=~-]+")
_NCCL_FOLDER = "collc-in-place-of-nccl-"  # how the names of such folders begin
_MAX_SCRIPT_DEPTH = 5  # as in Linux: the interpreter of a script may be a script
_PT_INTERP = 3
_MACHINES = {3: "i386", 40: "arm", 62: "x86-64", 183: "aarch64", 21: "ppc64", 243: "riscv64"}


@dataclass(frozen=True)
class _Elf:
    """The header of a program or library.

    Attributes:
        kind: the class (1: 32 bits, 2: 64 bits), the byte order (1: little endian) and the machine, as numbers of ELF.
        loader: the dynamic loader that a program names; None without one.
    """

    kind: tuple[int, int, int]
    loader: str | None

    def machine(self) -> str:
        return _MACHINES.get(self.kind[2], f"machine {self.kind[2]}")


def preload_name(library: Path) -> str:
    """Returns an absolute path of `library` that LD_PRELOAD does not split or expand.

    This is the path of the library, or the path of a symbolic link to it in a folder of this user.

    Raises:
        RunError: no such path exists.
    """
    target = str(library.resolve(strict=True))
    if _LITERAL_PATH.fullmatch(target):
        return target
    for folder in _link_folders():
        name = folder / f"libcollc-{content_key([os.fsencode(target)])[:32]}.so"
        if _LITERAL_PATH.fullmatch(str(name)) and _link(name, target):
            return str(name)
    what = "cannot be preloaded from a path with spaces, colons, $ or the like"
    raise RunError(what, where=target, hint="copy it to another folder")


def nccl_folder(library: str, headers: Path | None) -> Path | None:
    """Returns a folder that looks like NCCL's wheel, with `nvidia/nccl/lib/libnccl.so.2` as a link to `library`.

    Args:
        headers: the folder of NCCL's headers, which `nvidia/nccl/include` links to; None for no such link.

    Returns:
        The folder, whose path no list of paths splits or expands; None if it cannot be written.
    """
    links = {"lib/libnccl.so.2": library} | ({"include": str(headers)} if headers else {})
    key = content_key([os.fsencode(target) for target in links.values()])[:32]
    for parent in _link_folders():
        folder = parent / f"{_NCCL_FOLDER}{key}"
        if not _LITERAL_PATH.fullmatch(str(folder)):
            continue
        with suppress(OSError):
            for part in ("", "nvidia", "nvidia/nccl", "nvidia/nccl/lib"):
                (folder / part).mkdir(mode=0o700, exist_ok=True)
            if all(_link(folder / "nvidia" / "nccl" / name, target) for name, target in links.items()):
                return folder
    return None


def is_of_nccl_folder(path: str) -> bool:
    """Returns whether a path is in a folder of `nccl_folder`, such as in the environment of an outer `collc run`."""
    return any(part.startswith(_NCCL_FOLDER) for part in Path(path).parts)


def _link(name: Path, target: str) -> bool:
    """Makes `name` a symbolic link to `target`, in one step. Returns False if it cannot be written."""
    try:
        if not (name.is_symlink() and os.readlink(name) == target):
            aside = name.with_name(f".{name.name}.{os.getpid()}")
            aside.symlink_to(target)
            aside.replace(name)
        return True
    except OSError:
        return False


def _link_folders() -> list[Path]:
    """Returns folders where no other user can replace a link. They stay for commands that start later."""
    folders = []
    with suppress(CacheProblem):
        folders.append(safe_folder("preload"))
    folder = Path(tempfile.gettempdir()) / f"collc-preload-{os.geteuid()}"
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        info = folder.lstat()
        if stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and stat.S_IMODE(info.st_mode) == 0o700:
            folders.append(folder)
    return folders


def check_preload(program: Path, library: str, environment: Mapping[str, str]) -> None:
    """Checks that the loader will load `library` into `program`.

    If the program is a script, the function checks its interpreter. It does not check processes that the program
    starts, which inherit LD_PRELOAD. It accepts a program that is no readable ELF file, because the system reports that
    when the program starts.

    Args:
        library: the path that LD_PRELOAD of `environment` names.
        environment: the environment of the program.

    Raises:
        RunError: the library is no ELF file. Or the program is for another machine, is linked statically, or runs with
            privileges that the caller lacks (such as setuid), so that the loader ignores LD_PRELOAD. Or the loader does
            not list the library.
    """
    path = _interpreter(program)
    elf = _read(path)
    if elf is None:
        return  # the system reports the error when the program starts
    where = str(program) if path == program else f"{program}, a script of {path}"
    library_elf = _read(Path(library))
    if library_elf is None:
        raise RunError("is not a library", where=library, hint="give a file that `collc compile` wrote")
    if library_elf.kind != elf.kind:
        machines = f"is for {elf.machine()}, the library for {library_elf.machine()}"
        raise RunError(machines, where=where, hint="compile it there")
    if elf.loader is None:
        if re.match(r"ld[-.]", path.name):
            return  # the loader, which the command line tells to start a program
        hint = "start the program that calls NCCL, which must be linked dynamically"
        raise RunError("is linked statically: it cannot load a preloaded library", where=where, hint=hint)
    if _gains_privileges(path):
        hint = "run it as the user whose privileges it has"
        raise RunError(
            "runs with privileges that you do not have: the system ignores LD_PRELOAD for it", where=where, hint=hint
        )
    _ask_loader(elf.loader, path, library, environment)


def find_by_loader(name: str, program: Path, environment: Mapping[str, str]) -> Path | None:
    """Returns the file that the loader of `program` takes for the library `name`; None if it finds none."""
    path = _interpreter(program)
    elf = _read(path)
    if elf is None or elf.loader is None:
        return None
    listed = _list(elf.loader, path, {**environment, "LD_PRELOAD": name})
    lines = listed.stdout.decode(errors="replace") if listed else ""
    found = re.search(rf"^\s*{re.escape(name)} => (/.*) \(0x", lines, re.MULTILINE)
    return Path(found[1]) if found else None


def _interpreter(program: Path) -> Path:
    """Returns the interpreter of a script, which may again be a script; the program itself if it is no script."""
    path = program
    for _ in range(_MAX_SCRIPT_DEPTH):
        try:
            with open_input(path) as file:
                line = file.readline(256)
        except (OSError, CollcError):
            return path
        words = line[2:].split()
        if not line.startswith(b"#!") or not words:
            return path
        path = Path(os.fsdecode(words[0]))
    return path


def _read(path: Path) -> _Elf | None:
    """Returns the header of an ELF file; None if the file is no ELF file or not readable."""
    try:
        with open_input(path) as file:
            head = file.read(64)
            if len(head) < 64 or head[:4] != b"\x7fELF" or head[4] not in (1, 2) or head[5] not in (1, 2):
                return None
            order, wide = "<" if head[5] == 1 else ">", head[4] == 2
            kind = (head[4], head[5], struct.unpack_from(f"{order}H", head, 18)[0])
            start = struct.unpack_from(f"{order}{'Q' if wide else 'L'}", head, 32 if wide else 28)[0]
            size, count = struct.unpack_from(f"{order}2H", head, 54 if wide else 42)
            if start >= 1 << 40 or size < (56 if wide else 32):
                return _Elf(kind, None)
            file.seek(start)
            rows = file.read(size * count)
            for row in range(0, len(rows) - size + 1, size):
                if struct.unpack_from(f"{order}L", rows, row)[0] != _PT_INTERP:
                    continue
                offset = struct.unpack_from(f"{order}{'Q' if wide else 'L'}", rows, row + (8 if wide else 4))[0]
                if offset >= 1 << 40:
                    return None
                file.seek(offset)
                return _Elf(kind, os.fsdecode(file.read(4096).split(b"\0")[0]))
            return _Elf(kind, None)
    except (OSError, CollcError, struct.error):
        return None


def _gains_privileges(program: Path) -> bool:
    """Returns whether the system starts a program with privileges that its caller lacks (AT_SECURE)."""
    if (os.getuid(), os.getgid()) != (os.geteuid(), os.getegid()):
        return True
    try:
        info = program.stat()
        if os.statvfs(program).f_flag & os.ST_NOSUID:
            return False
    except OSError:
        return False
    if info.st_mode & stat.S_ISUID and info.st_uid != os.getuid():
        return True
    if info.st_mode & stat.S_ISGID and info.st_mode & stat.S_IXGRP and info.st_gid != os.getgid():
        return True
    try:
        return os.getuid() != 0 and bool(os.getxattr(program, "security.capability"))
    except OSError:
        return False


def _ask_loader(loader: str, program: Path, library: str, environment: Mapping[str, str]) -> None:
    """Raises RunError unless the loader lists the library among the files that it would load.

    `--list` runs no code of these files. If the loader does not run, this returns, because the system reports the error
    when the program starts.
    """
    result = _list(loader, program, environment)
    if result is None:
        return
    if any(line.split(b" (0x")[0].strip() == os.fsencode(library) for line in result.stdout.splitlines()):
        return
    lines = [line for line in result.stderr.decode(errors="replace").splitlines() if line.strip()]
    reason = next((line for line in lines if library in line), lines[0] if lines else "the loader does not list it")
    raise RunError(
        f"cannot be loaded into {program}: {reason.strip()}", where=library, hint="`collc doctor` may show the cause"
    )


def _list(loader: str, program: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[bytes] | None:
    """Has the loader list the files that it would load into a program, whose code does not run. None if it fails."""
    command = [loader, "--list", str(program)]
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=60, env=dict(environment)
        )
    except (OSError, subprocess.SubprocessError):
        return None
