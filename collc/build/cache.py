"""A build cache keyed by content: what went in names what came out, so an entry never goes stale.

Entries are loaded and run, so they are taken only from where nobody else can have put them: folder and files belong to
this user or the superuser, and only the owner writes to them. A cache that cannot be trusted or written is no obstacle:
what it should hold is built in a folder of this process.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

from collc.build.account import BUILT, CACHE, current
from collc.errors import BuildError
from collc.process import temporary_folder, whole

_LOG = logging.getLogger("collc")
_WRITERS = stat.S_IWGRP | stat.S_IWOTH
_SAID: set[str] = set()


class CacheProblem(Exception):
    """The cache cannot be used; the message says why and names the folder."""


def cache_dir() -> Path:
    """COLLC_CACHE, else collc below XDG_CACHE_HOME, else ~/.cache/collc; absolute."""
    chosen = os.environ.get("COLLC_CACHE")
    if chosen:
        return Path(os.path.abspath(chosen))
    base = os.environ.get("XDG_CACHE_HOME", "")
    # A relative path there is to be ignored (XDG Base Directory Specification).
    if os.path.isabs(base):
        return Path(base) / "collc"
    try:
        return Path.home() / ".cache" / "collc"
    except RuntimeError:  # no HOME, and no account with this user's number
        return Path("/nonexistent/.cache/collc")


def content_key(parts: Iterable[str | bytes]) -> str:
    """A key for a sequence of texts; the boundaries between them count."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode(errors="surrogateescape") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def cached(
    key: str,
    name: str,
    make: Callable[[Path], None],
    beside: Sequence[str] = (),
    *,
    label: str | None = None,
    origin: str = BUILT,
) -> Path:
    """The file `name` of entry `key`; `make(path)` writes it if the cache lacks it. Built aside, renamed whole.

    Args:
        beside: files that `make` leaves in the same folder and that belong to the entry.
        label: what the account of the build calls it [name].
        origin: what `make` does, in words of the account.
    """
    account = current()
    with ExitStack() as stack:
        try:
            folder = _folder(_root(), (key[:2], key))
            there = not account.stale(key) and all(_is_ours(folder / file) for file in (*beside, name))
            aside = folder if there else stack.enter_context(_scratch(folder))
        except CacheProblem as problem:
            _say(str(problem))
            folder = _private() / key
            there = not account.stale(key) and (folder / name).is_file()
            folder.mkdir(mode=0o700, exist_ok=True)
            aside = folder if there else stack.enter_context(_scratch(folder))
        if there:
            account.add(label or name, CACHE)
            return folder / name
        start = time.perf_counter()
        _build(folder, aside / name, make, (*beside, name))
        account.made.add(key)
        account.add(label or name, origin, time.perf_counter() - start)
    return folder / name


def _build(folder: Path, made: Path, make: Callable[[Path], None], names: Sequence[str]) -> None:
    """Makes an entry at `made` and moves its files, `names`, to the folder."""
    try:
        make(made)
        if not made.is_file():
            raise BuildError(
                f"its tool made no {made.name}",
                where=str(folder),
                hint="COLLC_CXX and COLLC_NVCC must be compilers",
            )
        # The file that says that the entry is there comes last.
        for name in names:
            source = made.with_name(name)
            source.chmod(source.stat().st_mode & ~_WRITERS)
            source.replace(folder / name)
    except OSError as error:
        raise BuildError(
            f"cannot write the build cache: {error.strerror}", where=str(folder), hint="set COLLC_CACHE to a folder"
        ) from error


def kept(key: str, name: str) -> bytes | None:
    """The contents of file `name` in entry `key`, written by `keep`; None if absent, not trusted or to be made anew."""
    if current().stale(key):
        return None
    try:
        root = _root()
        if not (root / key[:2] / key / name).is_file():
            return None
        file = _folder(root, (key[:2], key)) / name
        return file.read_bytes() if _is_ours(file) else None
    except (CacheProblem, OSError):
        return None


def keep(key: str, name: str, data: bytes) -> None:
    """Leaves `data` as the file `name` of entry `key`, written aside and renamed; nothing where the cache is no use."""
    with suppress(CacheProblem, OSError):
        folder = _folder(_root(), (key[:2], key))
        with _scratch(folder) as aside:
            file = Path(aside) / name
            file.write_bytes(data)
            file.chmod(file.stat().st_mode & ~_WRITERS)
            file.replace(folder / name)
            current().made.add(key)


def check_cache() -> None:
    """Makes the cache's folder if it is missing, and looks whether it can be used.

    Raises:
        CacheProblem: others may write to it, or this process may not.
    """
    with _scratch(_root()):
        pass


def safe_folder(name: str) -> Path:
    """A folder of the cache for files that belong to no entry.

    Raises:
        CacheProblem: there can be none that is ours alone.
    """
    folder = _folder(_root(), (name,))
    with _scratch(folder):
        pass
    return folder


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    with ExitStack() as stack:
        try:
            made = stack.enter_context(temporary_folder(folder, ".building-"))
        except OSError as error:
            raise CacheProblem(f"the build cache {cache_dir()} cannot be written: {error.strerror}") from None
        yield made


def _root() -> Path:
    """The folder of the cache without symbolic links, made if it is missing.

    Raises:
        CacheProblem: somebody else could put entries there.
    """
    named = cache_dir()
    try:
        if named.is_symlink() and named.lstat().st_uid not in (os.geteuid(), 0):
            raise CacheProblem(f"the build cache {named} is a link of another user")
        _make(named)
        root = named.resolve()
        _distrust(root)
        for parent in root.parents:
            mode = parent.stat().st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                raise CacheProblem(f"the build cache is not safe: everybody may write to {parent}")
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CacheProblem(f"the build cache {named} cannot be used: {reason}") from None
    return root


def _make(folder: Path) -> None:
    """Creates the folder and its parents, writable only by this user, whatever the umask is."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        _make(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o755)


def _distrust(folder: Path) -> None:
    found = folder.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise CacheProblem(f"the build cache {folder} is not a folder")
    if found.st_uid not in (os.geteuid(), 0):
        raise CacheProblem(f"the build cache is not safe: {folder} belongs to another user")
    if found.st_mode & _WRITERS:
        raise CacheProblem(f"the build cache is not safe: others may write to {folder} (remove it, or chmod go-w)")


def _folder(root: Path, names: Sequence[str]) -> Path:
    """The folder below the root, which is safe; what others left in its place, or could write to, goes."""
    folder = root
    for name in names:
        folder = folder / name
        try:
            with suppress(FileNotFoundError):
                found = folder.lstat()
                if stat.S_ISDIR(found.st_mode) and found.st_uid in (os.geteuid(), 0) and not found.st_mode & _WRITERS:
                    continue
                if stat.S_ISDIR(found.st_mode):
                    shutil.rmtree(folder)
                else:
                    folder.unlink()
                _LOG.warning("%s in the build cache could have been written by others: rebuilding it", folder)
            _make(folder)
        except OSError as error:
            raise CacheProblem(f"the build cache {root} cannot be written: {error.strerror}") from None
    return folder


def _is_ours(file: Path) -> bool:
    """Whether the file belongs to this user or the superuser, and nobody else can write to it."""
    try:
        found = file.lstat()
    except OSError:
        return False
    if stat.S_ISREG(found.st_mode) and found.st_uid in (os.geteuid(), 0) and not found.st_mode & _WRITERS:
        return True
    _LOG.warning("%s in the build cache can be written by other users: rebuilding it", file)
    return False


def _say(text: str) -> None:
    """Once, for a build of many parts."""
    if text in _SAID:
        return
    _SAID.add(text)
    _LOG.warning("%s: this run builds in a temporary folder; set COLLC_CACHE to use another cache", text)


@cache
def _private() -> Path:
    """A folder of this process alone, gone with it."""
    try:
        with whole():
            folder = tempfile.mkdtemp(prefix="collc-")
            atexit.register(_end, folder, os.getpid())
    except OSError as error:
        raise BuildError(
            f"cannot create a temporary folder: {error.strerror}", hint="set COLLC_CACHE or TMPDIR to a folder"
        ) from None
    return Path(folder)


def _end(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked child leaves it alone
        shutil.rmtree(folder, ignore_errors=True)
