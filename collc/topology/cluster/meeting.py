"""How the processes of `collc probe --cluster` meet: in a folder beside the file that one of them writes.

A cluster's home or project folder is on all of its servers, and a folder needs no port, no address and no name service:
srun, mpirun, torchrun and one process per server or per GPU all work alike. The folder belongs to this user alone, and
what lies in it is believed for that reason. Process 0 makes it new; a random word, the session, tells what belongs to
this run from what an earlier one left.
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

_MOST_BYTES = 16 << 20
_FIRST_WAIT, _LONGEST_WAIT = 0.02, 0.5
# How often a folder is emptied that somebody is still writing to.
_SWEEPS = 10


class Meeting:
    """One process's view of the folder.

    Args:
        output: the file that is written in the end; the folder lies beside it.
        job: what the processes of this job share and no other job does, or "".
        seconds: how long to wait for others.
    """

    def __init__(self, output: Path, rank: int, size: int, job: str, seconds: float) -> None:
        word = hashlib.sha256(job.encode()).hexdigest()[:12] if job else "job"
        self.folder = output.absolute().parent / f".{output.name[:80]}.{word}"
        self.rank, self.size = rank, size
        # Process 0 waits for the others, and then for the first process of each server; these wait for both.
        self.seconds = seconds
        self.end = time.monotonic() + (seconds if rank == 0 else 3 * seconds)
        self.session = ""
        self.nonce = secrets.token_hex(16)  # tells this process from that of its rank in an earlier run
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
        """Takes the folder away whole: somebody may still be writing to it."""
        aside = self.folder.with_name(f"{self.folder.name}.{secrets.token_hex(4)}")
        with suppress(FileNotFoundError):
            self.folder.rename(aside)
            for _ in range(_SWEEPS):
                shutil.rmtree(aside, ignore_errors=True)
                if not aside.exists():
                    break
                time.sleep(_FIRST_WAIT)

    def _joined(self) -> bool:
        """Whether process 0 has opened its session. What was posted to an earlier one is posted again."""
        if self.rank == 0:
            return True
        found = self._read("session")
        word = found.get("session") if found else None
        if not isinstance(word, str) or not self._ours():
            return False
        if word != self.session:
            try:
                for name, text in self.posted.items():
                    self._write(name, json.dumps({**json.loads(text), "session": word}))
            except OSError:  # of a session that is just being replaced
                return False
            self.session = word
        return True

    def _ours(self) -> bool:
        with suppress(OSError):
            seen = self.folder.lstat()
            return stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid() and not seen.st_mode & 0o077
        return False

    def join(self) -> None:
        """Waits until process 0 is there, or time is up."""
        while not self._joined() and time.monotonic() < self.end:
            time.sleep(_FIRST_WAIT)

    def post(self, name: str, value: dict[str, Any]) -> None:
        """Leaves a value for the others. Process 0 may not be there yet."""
        text = json.dumps(value)
        self.posted[name] = text
        if self._joined():
            with suppress(OSError):  # of a session that is just being replaced
                self._write(name, json.dumps({**value, "session": self.session}))

    def wait(self, names: Collection[str], watch: Callable[[], bool] = lambda: False) -> dict[str, dict[str, Any]]:
        """The values of these names; fewer where time is up, or `watch` says that waiting is in vain."""
        found: dict[str, dict[str, Any]] = {}
        pause = _FIRST_WAIT
        while True:
            if self._joined():
                # A list of the folder is fresh on network file systems, where a single missing name may be remembered.
                with suppress(OSError):
                    there = set(os.listdir(self.folder))
                    for name in [n for n in names if n not in found and n in there]:
                        value = self._read(name)
                        if value is not None and value.get("session") == self.session:
                            found[name] = value
            if len(found) == len(set(names)) or time.monotonic() > self.end or watch():
                return found
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_WAIT)

    def look(self, name: str) -> dict[str, Any] | None:
        """The value of a name, None if nobody has left it in this session."""
        value = self._read(name) if self._joined() else None
        return value if value is not None and value.get("session") == self.session else None

    def is_replaced(self, seconds: float) -> bool:
        """Waits whether process 0 opens another session than the one that was joined, so long at most."""
        before, end = self.session, min(self.end, time.monotonic() + seconds)
        while time.monotonic() < end:
            if self._joined() and self.session != before:
                return True
            time.sleep(_FIRST_WAIT)
        return False

    def allow(self, seconds: float) -> None:
        """From now on others have so much time again."""
        self.end = time.monotonic() + seconds

    def close(self) -> None:
        """Process 0 removes the folder."""
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
                value = json.loads(file.read(_MOST_BYTES))
        except (OSError, ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None
