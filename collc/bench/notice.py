"""Gives the ranks of a job on several machines the address of rank 0 and a secret.

COLLC_COMM_ID=tcp://HOST:PORT/SECRET has both. Otherwise rank 0 chooses a port and a secret and publishes them for this
job only: in torchrun's store, or in a folder of this user's cache, which machines share with the home folder.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol
from urllib.parse import urlsplit

from collc.bench.launchers import Place
from collc.build.cache import CacheProblem, safe_folder
from collc.errors import RunError, UsageError
from collc.topology.cluster.meeting import Meeting

_HINT = "or give all ranks the same COLLC_COMM_ID=tcp://ADDRESS:PORT/SECRET, with an address of rank 0's machine"


@dataclass(frozen=True)
class Notice:
    """The address and port of rank 0 (port 0: any free port), and the secret of the job."""

    address: str
    port: int
    secret: str


class Board(Protocol):
    """A place where rank 0 publishes its notice."""

    where: str  # its description, for messages
    fixed: Notice | None  # the notice, if all ranks know it in advance

    def post(self, notice: Notice) -> None:
        """Publishes the notice. Rank 0 calls this."""

    def read(self) -> Notice | None:
        """Returns the notice, or None if there is none yet."""

    def close(self) -> None:
        """Removes the notice."""


def board_of(place: Place, seconds: float) -> Board:
    """Returns the board of a job on several machines.

    Args:
        seconds: the time limit of the wait for torchrun's store.

    Raises:
        UsageError: COLLC_COMM_ID is wrong, or the job has no name.
        RunError: the store or the folder cannot be used.
    """
    named = os.environ.get("COLLC_COMM_ID", "")
    if "://" in named:
        return _Fixed(_parse(named))
    if place.launcher == "torchrun":
        return _Store(place, seconds)
    if not place.job:
        raise UsageError(
            "the launcher gives the job no name that all machines know", where=place.launcher, hint=_HINT[3:]
        )
    return _Folder(place, seconds)


def new_secret() -> str:
    """Returns 128 random bits as text."""
    return secrets.token_hex(16)


def _parse(text: str) -> Notice:
    try:
        url = urlsplit(text)
        host, port, secret = url.hostname, url.port, url.path.removeprefix("/")
    except ValueError:
        host = port = secret = None
    if not text.startswith("tcp://") or not host or not port or not secret:
        raise UsageError(
            "is not tcp://ADDRESS:PORT/SECRET", where="COLLC_COMM_ID", hint="as tcp://10.0.0.1:29600/a-word"
        )
    try:
        address = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise UsageError(f"{host[:60]}: {error.strerror}", where="COLLC_COMM_ID") from None
    return Notice(address, port, secret)


class _Fixed:
    """The notice in COLLC_COMM_ID."""

    def __init__(self, notice: Notice) -> None:
        self.where = "COLLC_COMM_ID"
        self.fixed: Notice | None = notice

    def post(self, notice: Notice) -> None:
        pass

    def read(self) -> Notice | None:
        return self.fixed

    def close(self) -> None:
        pass


class _Folder:
    """A folder in the cache that only this user may write."""

    fixed: Notice | None = None

    def __init__(self, place: Place, seconds: float) -> None:
        try:
            folder = safe_folder("jobs")
        except CacheProblem as problem:
            raise RunError(str(problem), where=place.launcher, hint=f"set COLLC_CACHE, {_HINT}") from None
        # Jobs of one user on different clusters may have equal numbers, but the rest of their names differs.
        name = hashlib.sha256(place.job.encode()).hexdigest()[:16]
        self.where = f"{folder}, which all machines must share ({_HINT})"
        self.meeting = Meeting(folder / name, place.rank, place.size, place.job, seconds)

    def post(self, notice: Notice) -> None:
        self.meeting.post("rank0", notice.__dict__)

    def read(self) -> Notice | None:
        value = self.meeting.look("rank0")
        return None if value is None else _notice(value)

    def close(self) -> None:
        self.meeting.close()


class _Store:
    """The store of torchrun for its ranks."""

    fixed: Notice | None = None

    def __init__(self, place: Place, seconds: float) -> None:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        self.where = f"torchrun's store at {address}"
        try:
            distributed: Any = importlib.import_module("torch.distributed")
        except ImportError as error:
            what = f"its store takes PyTorch, which cannot be imported here: {error}"
            raise RunError(what, where="torchrun", hint=f"install torch beside collc, {_HINT}") from None
        word = hashlib.sha256(place.job.encode()).hexdigest()[:16]
        self.key = f"collc-bench-{word}"
        try:
            wait = timedelta(seconds=seconds)
            self.store, _, _ = next(distributed.rendezvous("env://", place.rank, place.size, timeout=wait))
        except (RuntimeError, ValueError, OSError) as error:
            what = f"no store at {address}: {str(error).splitlines()[0][:200] if str(error) else error!r}"
            raise RunError(what, where="torchrun", hint=_HINT[3:]) from None

    def post(self, notice: Notice) -> None:
        self.store.set(self.key, json.dumps(notice.__dict__))

    def read(self) -> Notice | None:
        with suppress(RuntimeError, ValueError):  # the store ends with torchrun
            if self.store.check([self.key]):
                return _notice(json.loads(self.store.get(self.key)))
        return None

    def close(self) -> None:
        with suppress(RuntimeError):
            self.store.delete_key(self.key)


def _notice(value: dict[str, Any]) -> Notice | None:
    address, port, secret = (value.get(name) for name in ("address", "port", "secret"))
    if isinstance(address, str) and isinstance(port, int) and 0 < port < 65536 and isinstance(secret, str):
        return Notice(address, port, secret)
    return None
