"""How processes that a launcher started find rank 0: by a local socket with the job's name, which leaves no file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import struct
import time
from typing import Any

from collc.bench.launchers import Place
from collc.errors import RunError

_HELLO_SECONDS = 5.0


class Line:
    """A connection that carries JSON objects, one per line."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._reader = connection.makefile("r", encoding="utf-8")

    def send(self, message: dict[str, Any]) -> None:
        """Raises OSError when the other side is gone."""
        self.connection.sendall((json.dumps(message) + "\n").encode())

    def receive(self) -> dict[str, Any] | None:
        """The next message; None when the other side is gone."""
        try:
            text = self._reader.readline()
        except OSError:
            return None
        return dict(json.loads(text)) if text.endswith("\n") else None

    def close(self) -> None:
        self._reader.close()
        self.connection.close()


def address_of(place: Place) -> str:
    """The abstract name of the job's socket: one per user and job."""
    key = hashlib.sha256(place.job.encode()).hexdigest()[:32]
    return f"\0collc-bench-{os.getuid()}-{key}"


def patience() -> float:
    """Seconds that ranks wait for each other, as the runtime does."""
    text = os.environ.get("COLLC_BOOTSTRAP_TIMEOUT", "")
    return float(text) if text.isdigit() and int(text) > 0 else 600.0


def gather(place: Place) -> list[Line]:
    """Rank 0's side: connections to ranks 1, 2 ... of the job.

    Raises:
        RunError: some did not come in time, or another benchmark of the job is there already.
    """
    assert place.rank == 0
    deadline = time.monotonic() + patience()
    found: dict[int, Line] = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, contextlib.ExitStack() as undo:
        try:
            listener.bind(address_of(place))
        except OSError:
            raise RunError(
                "another benchmark of this job runs", where=place.launcher, hint="give each job its own COLLC_COMM_ID"
            ) from None
        listener.listen(place.size)
        while len(found) < place.size - 1:
            listener.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                line = _welcome(listener.accept()[0], place, set(found))
            except TimeoutError:
                missing = sorted(set(range(1, place.size)) - set(found))
                raise RunError(
                    f"ranks {', '.join(map(str, missing))} of {place.size} did not come within {patience():.0f} s",
                    where=place.launcher,
                    hint="all ranks must run on one machine; if they do, give them the same COLLC_COMM_ID",
                ) from None
            if line is not None:
                undo.callback(line[1].close)
                found[line[0]] = line[1]
        undo.pop_all()
    return [found[rank] for rank in range(1, place.size)]


def _welcome(connection: socket.socket, place: Place, known: set[int]) -> tuple[int, Line] | None:
    """A rank of the job and its connection; None for strangers."""
    connection.settimeout(_HELLO_SECONDS)
    line = Line(connection)
    try:
        hello = line.receive() if _same_user(connection) else None
    except ValueError:
        hello = None
    if hello is None or hello.get("size") != place.size or hello.get("rank") not in range(1, place.size):
        line.close()
        return None
    rank = int(hello["rank"])
    if rank in known:
        line.close()
        raise RunError(f"two processes claim to be rank {rank}", where=place.launcher)
    connection.settimeout(None)
    return rank, line


def join(place: Place) -> Line:
    """The side of ranks 1, 2 ...: the connection to rank 0.

    Raises:
        RunError: rank 0 did not come in time.
    """
    deadline = time.monotonic() + patience()
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(address_of(place))
            if _same_user(connection):
                line = Line(connection)
                line.send({"rank": place.rank, "size": place.size})
                return line
        except OSError:
            pass
        connection.close()
        if time.monotonic() > deadline:
            raise RunError(
                f"rank 0 did not come within {patience():.0f} s",
                where=f"{place.launcher}, rank {place.rank}",
                hint="all ranks must run on one machine; if they do, give them the same COLLC_COMM_ID",
            )
        time.sleep(0.02)


def _same_user(connection: socket.socket) -> bool:
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.getuid())
