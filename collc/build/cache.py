"""A build cache keyed by content: the key of an entry is a digest of its inputs, so an entry never becomes outdated.

Files of builds are loaded and run. So an entry is used only if no other user can have written it: folder and files
belong to this user or the superuser, and only the owner may write to them. If the cache cannot be trusted or written,
files are built in a temporary folder of this process, and solutions of plans are not kept.

Processes that need the same entry at the same time build it once: one builds, the others wait (`_locked`).
"""

from __future__ import annotations

import atexit
import fcntl
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
from collc.process import pause, temporary_folder, whole

_LOG = logging.getLogger("collc")
_WRITERS = stat.S_IWGRP | stat.S_IWOTH
_WARNINGS: set[str] = set()
# A process that waits longer for the lock of an entry builds the entry itself: the holder may be stopped in a debugger.
# A whole runtime takes about a minute to compile.
_MAX_WAIT_SECONDS = 600.0
_POLL_SECONDS = 0.05


class CacheProblem(Exception):
    """The cache cannot be used; the message says why and names the folder."""


def cache_dir() -> Path:
    """Returns the absolute path of the cache: COLLC_CACHE, else collc in XDG_CACHE_HOME, else ~/.cache/collc."""
    override = os.environ.get("COLLC_CACHE")
    if override:
        return Path(os.path.abspath(override))
    base = os.environ.get("XDG_CACHE_HOME", "")
    # Programs must ignore a relative path in XDG_CACHE_HOME (XDG Base Directory Specification).
    if os.path.isabs(base):
        return Path(base) / "collc"
    try:
        return Path.home() / ".cache" / "collc"
    except RuntimeError:  # HOME is not set, and no account has the number of this user
        return Path("/nonexistent/.cache/collc")


def content_key(parts: Iterable[str | bytes]) -> str:
    """Returns the digest of a sequence of texts, as hexadecimal digits. It depends on the boundaries between texts."""
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
    """Returns the path of the file `name` of entry `key`, which it builds if the cache lacks it.

    Adds a part to the account of the build.

    Args:
        make: builds the entry: writes the file at the path that it is called with. Files are built in a separate folder
            and then renamed, so other processes never see half a file.
        beside: the names of further files of the entry, which `make` writes in the folder of the file.
        label: the name of the part in the account; default: `name`.
        origin: the origin of the part in the account if `make` was called.

    Raises:
        BuildError: `make` fails or writes no file, or the file cannot be moved into the cache.
    """
    account = current()
    with ExitStack() as stack:
        try:
            folder = _folder(_root(), (key[:2], key))

            def has_files() -> bool:
                return not account.stale(key) and all(_is_ours(folder / file) for file in (*beside, name))

            has_entry = has_files()
            if not has_entry:
                stack.enter_context(_locked(folder))
                has_entry = has_files()  # another process may have built the entry
            aside = folder if has_entry else stack.enter_context(_scratch(folder))
        except CacheProblem as problem:
            _warn_once(str(problem))
            folder = _process_folder() / key
            has_entry = not account.stale(key) and (folder / name).is_file()
            folder.mkdir(mode=0o700, exist_ok=True)
            aside = folder if has_entry else stack.enter_context(_scratch(folder))
        if has_entry:
            account.add(label or name, CACHE)
            return folder / name
        start = time.perf_counter()
        _build(folder, aside / name, make, (*beside, name))
        account.built_keys.add(key)
        account.add(label or name, origin, time.perf_counter() - start)
    return folder / name


def _build(folder: Path, output: Path, make: Callable[[Path], None], names: Sequence[str]) -> None:
    """Builds an entry at `output` and moves its files, `names`, to the folder."""
    try:
        make(output)
        if not output.is_file():
            raise BuildError(
                f"its tool made no {output.name}",
                where=str(folder),
                hint="COLLC_CXX and COLLC_NVCC must be compilers",
            )
        # The main file comes last in `names`.
        for name in names:
            source = output.with_name(name)
            source.chmod(source.stat().st_mode & ~_WRITERS)
            source.replace(folder / name)
    except OSError as error:
        raise BuildError(
            f"cannot write the build cache: {error.strerror}", where=str(folder), hint="set COLLC_CACHE to a folder"
        ) from error


def kept(key: str, name: str) -> bytes | None:
    """Returns the contents of file `name` in entry `key`, which `keep` wrote.

    None if the file is absent or not trusted, or if the account of the build must not use the entry.
    """
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
    """Stores `data` as the file `name` of entry `key`. Does nothing if the cache cannot be used.

    The file is written in a separate folder and then renamed.
    """
    with suppress(CacheProblem, OSError):
        folder = _folder(_root(), (key[:2], key))
        with _scratch(folder) as aside:
            file = Path(aside) / name
            file.write_bytes(data)
            file.chmod(file.stat().st_mode & ~_WRITERS)
            file.replace(folder / name)
            current().built_keys.add(key)


def check_cache() -> None:
    """Creates the folder of the cache if it is missing, and checks that this process can use it.

    Raises:
        CacheProblem: another user may write to it, or this process may not.
    """
    with _scratch(_root()):
        pass


def safe_folder(name: str) -> Path:
    """Returns a folder of the cache for files that belong to no entry.

    Raises:
        CacheProblem: another user may write to the cache, or this process may not.
    """
    folder = _folder(_root(), (name,))
    with _scratch(folder):
        pass
    return folder


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """Yields a temporary folder in a folder, and removes it at the end."""
    with ExitStack() as stack:
        try:
            scratch = stack.enter_context(temporary_folder(folder, ".building-"))
        except OSError as error:
            raise CacheProblem(f"the build cache {cache_dir()} cannot be written: {error.strerror}") from None
        yield scratch


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder. Waits for the lock at most `_MAX_WAIT_SECONDS`.

    The kernel releases the lock when its process ends. On file systems without locks, nothing is locked.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            deadline = time.monotonic() + _MAX_WAIT_SECONDS
            while not _try_lock(descriptor) and time.monotonic() < deadline:
                pause(_POLL_SECONDS)
        yield


def _try_lock(descriptor: int) -> bool:
    """Locks an open folder, and returns False if another process or thread has locked it.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _root() -> Path:
    """Returns the path of the cache without symbolic links, and creates the folder if it is missing.

    Raises:
        CacheProblem: another user could write entries there, or the folder cannot be created or read.
    """
    folder = cache_dir()
    try:
        if folder.is_symlink() and folder.lstat().st_uid not in (os.geteuid(), 0):
            raise CacheProblem(f"the build cache {folder} is a link of another user")
        _create(folder)
        root = folder.resolve()
        _check_owner(root)
        for parent in root.parents:
            mode = parent.stat().st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                raise CacheProblem(f"the build cache is not safe: everybody may write to {parent}")
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CacheProblem(f"the build cache {folder} cannot be used: {reason}") from None
    return root


def _create(folder: Path) -> None:
    """Creates a folder and its parents, writable only by this user under any umask."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        _create(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o755)


def _check_owner(folder: Path) -> None:
    """Raises CacheProblem if a folder belongs to another user or others may write to it."""
    info = folder.stat()
    if not stat.S_ISDIR(info.st_mode):
        raise CacheProblem(f"the build cache {folder} is not a folder")
    if info.st_uid not in (os.geteuid(), 0):
        raise CacheProblem(f"the build cache is not safe: {folder} belongs to another user")
    if info.st_mode & _WRITERS:
        raise CacheProblem(f"the build cache is not safe: others may write to {folder} (remove it, or chmod go-w)")


def _folder(root: Path, names: Sequence[str]) -> Path:
    """Returns a safe folder below the root, which it creates if it is missing.

    Removes what is in its place if that is no folder, belongs to another user, or others may write to it.
    """
    folder = root
    for name in names:
        folder = folder / name
        try:
            with suppress(FileNotFoundError):
                info = folder.lstat()
                if stat.S_ISDIR(info.st_mode) and info.st_uid in (os.geteuid(), 0) and not info.st_mode & _WRITERS:
                    continue
                if stat.S_ISDIR(info.st_mode):
                    shutil.rmtree(folder)
                else:
                    folder.unlink()
                _LOG.warning("%s in the build cache could have been written by others: rebuilding it", folder)
            _create(folder)
        except OSError as error:
            raise CacheProblem(f"the build cache {root} cannot be written: {error.strerror}") from None
    return folder


def _is_ours(file: Path) -> bool:
    """Returns whether a file belongs to this user or the superuser and nobody else can write to it."""
    try:
        info = file.lstat()
    except OSError:
        return False
    if stat.S_ISREG(info.st_mode) and info.st_uid in (os.geteuid(), 0) and not info.st_mode & _WRITERS:
        return True
    _LOG.warning("%s in the build cache can be written by other users: rebuilding it", file)
    return False


def _warn_once(text: str) -> None:
    """Logs a problem of the cache, once per process."""
    if text in _WARNINGS:
        return
    _WARNINGS.add(text)
    _LOG.warning("%s: this run builds in a temporary folder; set COLLC_CACHE to use another cache", text)


@cache
def _process_folder() -> Path:
    """Returns a temporary folder of this process, which is removed when the process ends."""
    try:
        with whole():
            folder = tempfile.mkdtemp(prefix="collc-")
            atexit.register(_remove_folder, folder, os.getpid())
    except OSError as error:
        raise BuildError(
            f"cannot create a temporary folder: {error.strerror}", hint="set COLLC_CACHE or TMPDIR to a folder"
        ) from None
    return Path(folder)


def _remove_folder(folder: str, owner: int) -> None:
    """Removes the folder if this process is its owner, not a forked child."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
