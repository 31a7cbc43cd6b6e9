"""The meeting of the processes of `collc probe --cluster`: a folder next to the output file.

A cluster's home or project folder is on all of its servers, and a folder needs no port, no address and no name service.
So srun, mpirun, torchrun, and one process per server or per GPU all work in the same way. Processes trust the files in
the folder because only this user can write there. Process 0 creates the folder anew. A random word, the session,
distinguishes the files of this run from files of an earlier run.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from collc.errors import RunError

_MAX_FILE_BYTES = 16 << 20
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.02, 0.5
# Attempts to remove a folder that another process still writes to.
_MAX_SWEEPS = 10


class Meeting:
    """One process's view of the folder.

    Args:
        output: the file that process 0 writes at the end; the folder is next to it.
        rank, size: the number of this process, and the number of processes.
        job: a text that only the processes of this job share, or "".
        seconds: the time to wait for other processes. Process 0 waits this long at first, the others three times as
            long.
    """

    def __init__(self, output: Path, rank: int, size: int, job: str, seconds: float) -> None:
        word = hashlib.sha256(job.encode()).hexdigest()[:12] if job else "job"
        self.folder = output.absolute().parent / f".{output.name[:80]}.{word}"
        self.rank, self.size = rank, size
        # Process 0 waits for the others, and then for the first process of each server; these wait for both.
        self.seconds = seconds
        self.end = time.monotonic() + (seconds if rank == 0 else 3 * seconds)
        self.session = ""
        self.nonce = secrets.token_hex(16)  # distinguishes this process from the same rank of an earlier run
        self.posted: dict[str, str] = {}
        if rank == 0:
            self._make()

    def _make(self) -> None:
        try:
            if self.folder.is_symlink() or (self.folder.exists() and self.folder.stat().st_uid != os.geteuid()):
                raise RunError("is another user's", where=str(self.folder), hint="write to a folder of your own")
            self._sweep()
            self.folder.mkdir(mode=0o700)
        except OSError as error:
            raise RunError(f"cannot meet here: {error.strerror}", where=str(self.folder.parent)) from None
        self.session = secrets.token_hex(16)
        self._write("session", json.dumps({"session": self.session}))

    def _sweep(self) -> None:
        """Renames the folder, because another process may still write to it, and then removes it."""
        aside = self.folder.with_name(f"{self.folder.name}.{secrets.token_hex(4)}")
        with suppress(FileNotFoundError):
            self.folder.rename(aside)
            for _ in range(_MAX_SWEEPS):
                shutil.rmtree(aside, ignore_errors=True)
                if not aside.exists():
                    break
                time.sleep(_FIRST_WAIT_SECONDS)

    def _joined(self) -> bool:
        """Returns True if process 0 has opened a session. In a new session, posts this process's values again."""
        if self.rank == 0:
            return True
        value = self._read("session")
        word = value.get("session") if value else None
        if not isinstance(word, str) or not self._ours():
            return False
        if word != self.session:
            try:
                for name, text in self.posted.items():
                    self._write(name, json.dumps({**json.loads(text), "session": word}))
            except OSError:  # process 0 is just replacing the session
                return False
            self.session = word
        return True

    def _ours(self) -> bool:
        with suppress(OSError):
            status = self.folder.lstat()
            return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
        return False

    def join(self) -> None:
        """Waits until process 0 has opened a session, or the time is over."""
        while not self._joined() and time.monotonic() < self.end:
            time.sleep(_FIRST_WAIT_SECONDS)

    def post(self, name: str, value: dict[str, Any]) -> None:
        """Posts a value for the other processes; if process 0 has no session yet, once it has opened one."""
        text = json.dumps(value)
        self.posted[name] = text
        if self._joined():
            with suppress(OSError):  # process 0 is just replacing the session
                self._write(name, json.dumps({**value, "session": self.session}))

    def wait(self, names: Collection[str], watch: Callable[[], bool] = lambda: False) -> dict[str, dict[str, Any]]:
        """Waits for the values of some names.

        Args:
            watch: ends the wait early by returning True.

        Returns:
            The values by name; some are missing if the time is over or `watch` has ended the wait.
        """
        values: dict[str, dict[str, Any]] = {}
        pause = _FIRST_WAIT_SECONDS
        while True:
            if self._joined():
                # Network file systems may cache that a single name is missing, but a listing of the folder is fresh.
                with suppress(OSError):
                    listing = set(os.listdir(self.folder))
                    for name in [n for n in names if n not in values and n in listing]:
                        value = self._read(name)
                        if value is not None and value.get("session") == self.session:
                            values[name] = value
            if len(values) == len(set(names)) or time.monotonic() > self.end or watch():
                return values
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_WAIT_SECONDS)

    def look(self, name: str) -> dict[str, Any] | None:
        """Returns the value of a name; None if no process has posted it in this session."""
        value = self._read(name) if self._joined() else None
        return value if value is not None and value.get("session") == self.session else None

    def is_replaced(self, seconds: float) -> bool:
        """Waits until process 0 replaces the session that this process joined. Returns False after `seconds`."""
        session, end = self.session, min(self.end, time.monotonic() + seconds)
        while time.monotonic() < end:
            if self._joined() and self.session != session:
                return True
            time.sleep(_FIRST_WAIT_SECONDS)
        return False

    def allow(self, seconds: float) -> None:
        """Sets the end of all waits to `seconds` from now."""
        self.end = time.monotonic() + seconds

    def close(self) -> None:
        """Removes the folder, in process 0; does nothing in the others."""
        if self.rank == 0:
            self._sweep()

    def _write(self, name: str, text: str) -> None:
        aside = self.folder / f".{name}.{self.rank}.{secrets.token_hex(4)}"
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.rename(self.folder / name)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            with (self.folder / name).open("rb") as file:
                value = json.loads(file.read(_MAX_FILE_BYTES))
        except (OSError, ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None
