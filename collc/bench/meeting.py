"""Connects the processes that a launcher started to rank 0.

On one machine they use a local socket with the job's name, which leaves no file. On several machines they use TCP: rank
0 publishes its address and a secret where all ranks can read them (collc.bench.notice), and both ends of a connection
prove that they know the secret.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from collc.bench.launchers import Place
from collc.bench.notice import Board, Notice, board_of, new_secret
from collc.errors import RunError
from collc.network.handshake import HandshakeListener, connect_with_secret, key_of
from collc.network.interfaces import outward_address

_HELLO_SECONDS = 5.0
_HELLO = struct.Struct("!II")  # rank, size
_ONE_MACHINE = "all ranks must run on one machine; if they do, give them the same COLLC_COMM_ID"


class Line:
    """A connection that carries JSON objects, one per line."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        public = connection.family != socket.AF_UNIX
        self.at = f" at {connection.getpeername()[0]}" if public else ""  # the address of another machine, for messages
        self._reader = connection.makefile("r", encoding="utf-8")

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message. Raises OSError if the other end is gone."""
        self.connection.sendall((json.dumps(message) + "\n").encode())

    def receive(self) -> dict[str, Any] | None:
        """Returns the next message; None if the other end is gone."""
        try:
            text = self._reader.readline()
        except OSError:
            return None
        return dict(json.loads(text)) if text.endswith("\n") else None

    def close(self) -> None:
        self._reader.close()
        self.connection.close()


def address_of(place: Place) -> str:
    """Returns the abstract name of the job's socket, which is different for each user and job."""
    key = hashlib.sha256(place.job.encode()).hexdigest()[:32]
    return f"\0collc-bench-{os.getuid()}-{key}"


def patience() -> float:
    """Returns the seconds that ranks wait for each other, as in the runtime."""
    text = os.environ.get("COLLC_BOOTSTRAP_TIMEOUT", "")
    return float(text) if text.isdigit() and int(text) > 0 else 600.0


class _Entrance(Protocol):
    """A listener of rank 0 for the other ranks."""

    hint: str

    def next(self, seconds: float) -> tuple[int, Line] | None:
        """Returns the next rank and its connection; None if the caller is no rank of this job.

        Raises:
            TimeoutError: no caller came in time.
        """


class _Local:
    """A listener on a socket of the abstract namespace with the job's name."""

    hint = _ONE_MACHINE

    def __init__(self, listener: socket.socket, place: Place) -> None:
        self.listener, self.place = listener, place

    def next(self, seconds: float) -> tuple[int, Line] | None:
        self.listener.settimeout(seconds)
        connection, _ = self.listener.accept()
        connection.settimeout(_HELLO_SECONDS)
        line = Line(connection)
        try:
            hello = line.receive() if _same_user(connection) else None
        except ValueError:
            hello = None
        if hello is None or hello.get("size") != self.place.size or hello.get("rank") not in range(1, self.place.size):
            line.close()
            return None
        connection.settimeout(None)
        return int(hello["rank"]), line


class _Public:
    """A listener on a TCP port, which a board publishes."""

    def __init__(self, tcp_listener: HandshakeListener, board: Board, place: Place) -> None:
        self.tcp_listener, self.place = tcp_listener, place
        self.hint = f"ranks look for rank 0 at {board.where}"

    def next(self, seconds: float) -> tuple[int, Line] | None:
        hello, connection = self.tcp_listener.next(seconds)
        rank, size = _HELLO.unpack(hello)
        if size != self.place.size or rank not in range(1, size):
            connection.close()
            return None
        return rank, Line(connection)


@contextmanager
def _entrance(place: Place) -> Iterator[_Entrance]:
    """Yields the listener of rank 0, and closes it at the end.

    Raises:
        RunError: this process cannot listen there.
    """
    if not place.several_machines:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            try:
                listener.bind(address_of(place))
            except OSError:
                hint = "give each job its own COLLC_COMM_ID"
                raise RunError("another benchmark of this job runs", where=place.launcher, hint=hint) from None
            listener.listen(place.size)
            yield _Local(listener, place)
        return
    board = board_of(place, patience())
    notice = board.fixed or Notice(outward_address(), 0, new_secret())
    try:
        tcp_listener = HandshakeListener(notice.address, notice.port, _key(notice), _HELLO.size)
        tcp_listener.start()
    except OSError as error:
        at = f"{notice.address} port {notice.port}" if notice.port else notice.address
        raise RunError(f"rank 0 cannot listen on {at}: {error.strerror}", where=place.launcher) from None
    with contextlib.closing(board), contextlib.closing(tcp_listener):
        board.post(Notice(notice.address, tcp_listener.port, notice.secret))
        yield _Public(tcp_listener, board, place)


def gather(place: Place) -> list[Line]:
    """Returns the connections of rank 0 to ranks 1, 2 ... of the job.

    Raises:
        RunError: some ranks did not come in time, or another benchmark of the job is running.
    """
    assert place.rank == 0
    deadline = time.monotonic() + patience()
    found: dict[int, Line] = {}
    with contextlib.ExitStack() as undo, _entrance(place) as entrance:
        while len(found) < place.size - 1:
            try:
                came = entrance.next(max(0.01, deadline - time.monotonic()))
            except TimeoutError:
                missing = sorted(set(range(1, place.size)) - set(found))
                raise RunError(
                    f"ranks {', '.join(map(str, missing))} of {place.size} did not come within {patience():.0f} s",
                    where=place.launcher,
                    hint=entrance.hint,
                ) from None
            if came is None:
                continue
            rank, line = came
            undo.callback(line.close)
            if rank in found:
                raise RunError(f"two processes claim to be rank {rank}", where=place.launcher)
            found[rank] = line
        undo.pop_all()
    return [found[rank] for rank in range(1, place.size)]


def join(place: Place) -> Line:
    """Returns the connection of rank 1, 2 ... to rank 0.

    Raises:
        RunError: rank 0 did not come in time.
    """
    deadline = time.monotonic() + patience()
    board = board_of(place, patience()) if place.several_machines else None
    hint = _ONE_MACHINE if board is None else f"it is looked for at {board.where}"
    problem = ""
    while True:
        try:
            line = _knock_here(place) if board is None else _knock_there(place, board)
            if line is not None:
                return line
            problem = ""
        except OSError as error:
            problem = "" if board is None else f" ({error.strerror or error})"
        if time.monotonic() > deadline:
            what = f"rank 0 did not come within {patience():.0f} s{problem}"
            raise RunError(what, where=f"{place.launcher}, rank {place.rank}", hint=hint)
        time.sleep(0.02 if board is None else 0.1)


def _knock_here(place: Place) -> Line | None:
    """Returns the connection to rank 0 on this machine; None if the listener is another user.

    Raises:
        OSError: nothing listens there.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(address_of(place))
        if _same_user(connection):
            line = Line(connection)
            line.send({"rank": place.rank, "size": place.size})
            return line
    except OSError:
        connection.close()
        raise
    connection.close()
    return None


def _knock_there(place: Place, board: Board) -> Line | None:
    """Returns the connection to rank 0 at the address on the board; None if the board is still empty.

    Raises:
        OSError: as for `connect_with_secret`.
    """
    notice = board.read()
    if notice is None:
        return None
    try:
        return Line(connect_with_secret(notice.address, notice.port, _key(notice), _HELLO.pack(place.rank, place.size)))
    except OSError as error:
        raise OSError(
            error.errno or 0, f"{notice.address} port {notice.port}: {error.strerror or 'no answer'}"
        ) from None


def _key(notice: Notice) -> bytes:
    return key_of("collc bench", notice.secret)


def _same_user(connection: socket.socket) -> bool:
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.getuid())
