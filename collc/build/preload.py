"""How a library gets into a command in place of NCCL, and why it would not.

The dynamic loader takes LD_PRELOAD apart at spaces and colons, expands `$ORIGIN` and its like, and goes on without what
it cannot load. A job that silently runs without its library measures and trains with another one, so what can be known
before the command starts is asked before.
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

# Characters that the loader takes literally, in a list, in a message and in its own output.
_PLAIN = re.compile(r"[A-Za-z0-9_./+,@%=~-]+")
_MOST_SCRIPTS = 5  # as Linux: a script's interpreter may be a script
_PT_INTERP = 3
_MACHINES = {3: "i386", 40: "arm", 62: "x86-64", 183: "aarch64", 21: "ppc64", 243: "riscv64"}


@dataclass(frozen=True)
class _Elf:
    """A program's or library's class (32 or 64 bits), byte order and machine; the loader that a program asks for."""

    kind: tuple[int, int, int]
    loader: str | None

    def machine(self) -> str:
        return _MACHINES.get(self.kind[2], f"machine {self.kind[2]}")


def preload_name(library: Path) -> str:
    """An absolute path of `library` that LD_PRELOAD takes whole: its own, or that of a link in a folder of this user.

    Raises:
        RunError: there is none.
    """
    target = str(library.resolve(strict=True))
    if _PLAIN.fullmatch(target):
        return target
    for folder in _link_folders():
        name = folder / f"libcollc-{content_key([os.fsencode(target)])[:32]}.so"
        if not _PLAIN.fullmatch(str(name)):
            continue
        try:
            if not (name.is_symlink() and os.readlink(name) == target):
                aside = name.with_suffix(f".{os.getpid()}")
                aside.symlink_to(target)
                aside.replace(name)
            return str(name)
        except OSError:
            continue
    what = "cannot be preloaded from a path with spaces, colons, $ or the like"
    raise RunError(what, where=target, hint="copy it to another folder")


def _link_folders() -> list[Path]:
    """Folders in which nobody else can replace a link; commands that start later still find them."""
    found = []
    with suppress(CacheProblem):
        found.append(safe_folder("preload"))
    own = Path(tempfile.gettempdir()) / f"collc-preload-{os.geteuid()}"
    with suppress(OSError):
        own.mkdir(mode=0o700, exist_ok=True)
        has = own.lstat()
        if stat.S_ISDIR(has.st_mode) and has.st_uid == os.geteuid() and stat.S_IMODE(has.st_mode) == 0o700:
            found.append(own)
    return found


def check_preload(program: Path, library: str, environment: Mapping[str, str]) -> None:
    """Makes sure that `program`, started in `environment`, has `library` (of LD_PRELOAD there) in it.

    A script is judged by its interpreter. What a program starts in its turn inherits LD_PRELOAD and is not looked at.

    Raises:
        RunError: it is for another machine, linked statically or has rights of its own (setuid), for which the loader
            ignores LD_PRELOAD; or the loader says that it cannot load the library.
    """
    path = _interpreter(program)
    elf = _read(path)
    if elf is None:
        return  # the system says what it makes of it
    where = str(program) if path == program else f"{program}, a script of {path}"
    own = _read(Path(library))
    if own is None:
        raise RunError("is not a library", where=library, hint="give a file that `collc compile` wrote")
    if own.kind != elf.kind:
        raise RunError(f"is for {elf.machine()}, the library for {own.machine()}", where=where, hint="compile it there")
    if elf.loader is None:
        if re.match(r"ld[-.]", path.name):
            return  # the loader itself, told to start a program
        hint = "start the program that calls NCCL, which must be linked dynamically"
        raise RunError("is linked statically: it cannot load a preloaded library", where=where, hint=hint)
    if _gains_rights(path):
        hint = "run it as the user whose privileges it has"
        raise RunError(
            "runs with privileges that you do not have: the system ignores LD_PRELOAD for it", where=where, hint=hint
        )
    _ask_loader(elf.loader, path, library, environment)


def _interpreter(program: Path) -> Path:
    path = program
    for _ in range(_MOST_SCRIPTS):
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
    """The header of an ELF file; None for what is none, or is not readable."""
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
            for at in range(0, len(rows) - size + 1, size):
                if struct.unpack_from(f"{order}L", rows, at)[0] != _PT_INTERP:
                    continue
                offset = struct.unpack_from(f"{order}{'Q' if wide else 'L'}", rows, at + (8 if wide else 4))[0]
                if offset >= 1 << 40:
                    return None
                file.seek(offset)
                return _Elf(kind, os.fsdecode(file.read(4096).split(b"\0")[0]))
            return _Elf(kind, None)
    except (OSError, CollcError, struct.error):
        return None


def _gains_rights(program: Path) -> bool:
    """Whether the system starts it with rights that its caller lacks (AT_SECURE)."""
    if (os.getuid(), os.getgid()) != (os.geteuid(), os.getegid()):
        return True
    try:
        found = program.stat()
        if os.statvfs(program).f_flag & os.ST_NOSUID:
            return False
    except OSError:
        return False
    if found.st_mode & stat.S_ISUID and found.st_uid != os.getuid():
        return True
    if found.st_mode & stat.S_ISGID and found.st_mode & stat.S_IXGRP and found.st_gid != os.getgid():
        return True
    try:
        return os.getuid() != 0 and bool(os.getxattr(program, "security.capability"))
    except OSError:
        return False


def _ask_loader(loader: str, program: Path, library: str, environment: Mapping[str, str]) -> None:
    """The loader lists what it would load, without running any of it."""
    try:
        done = subprocess.run(
            [loader, "--list", str(program)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=60,
            env=dict(environment),
        )
    except (OSError, subprocess.SubprocessError):
        return  # the system says why when the program starts
    if any(line.split(b" (0x")[0].strip() == os.fsencode(library) for line in done.stdout.splitlines()):
        return
    said = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    told = next((line for line in said if library in line), said[0] if said else "the loader does not list it")
    raise RunError(
        f"cannot be loaded into {program}: {told.strip()}", where=library, hint="`collc doctor` may show the cause"
    )
