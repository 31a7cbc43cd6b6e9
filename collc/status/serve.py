"""Serves a text over HTTP on a local socket, for `collc status --openmetrics --listen`.

The server runs outside the jobs, which need no thread and no socket for it. One thread serves all clients without
blocking. Each client has a few seconds for its request and the answer. If too many are connected, the oldest connection
is closed.
"""

from __future__ import annotations

import os
import re
import selectors
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from collc.errors import CollcError, RunError, UsageError
from collc.outputs import check_output

_PATIENCE = 5.0  # seconds from the connection to the end of the answer
_MOST_CLIENTS = 64
_MOST_REQUEST = 8192  # bytes
_MOST_PATH = 107  # bytes of a socket's path
_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class _Client:
    """A connection: the request so far, then the rest of the answer."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.ends = time.monotonic() + _PATIENCE
        self.request = b""
        self.answer = b""


def serve(path: Path, text: Callable[[], str], ready: Callable[[], None]) -> None:
    """Answers every GET on the socket `path` until an exception, such as Ctrl-C, ends it. The socket is removed then.

    Args:
        path: the path of the socket. Only this user may connect to it. A socket without a listener is replaced.
        text: returns the present text. A `CollcError` becomes an answer with status 500.
        ready: called once clients can connect.

    Raises:
        UsageError: the path is too long, or something else is there.
        CollcError: the folder is missing or may not be written to.
        RunError: the socket cannot be made.
    """
    with _listener(path) as listener, selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        clients: dict[int, _Client] = {}
        ready()
        try:
            while True:
                _turn(listener, selector, clients, text)
        finally:
            for client in clients.values():
                client.connection.close()


@contextmanager
def _listener(path: Path) -> Iterator[socket.socket]:
    """Yields the listening socket, and removes it at the end."""
    if len(os.fsencode(path)) > _MOST_PATH:
        raise UsageError(
            f"a socket's path has at most {_MOST_PATH} bytes", where=str(path), hint="choose a shorter one"
        )
    if re.fullmatch(r"(\[[0-9a-fA-F:]*\]|[\w.-]*)(:\d+)|\d+", str(path)):
        hint = "name a file such as collc.sock"
        raise UsageError("is a network port, and this listens on a local socket alone", where=str(path), hint=hint)
    _make_room(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as listener:
        before = os.umask(0o177)
        try:
            listener.bind(os.fsencode(path))
        except OSError as error:
            raise RunError(f"no socket can be made: {error.strerror}", where=str(path), hint="name another") from None
        finally:
            os.umask(before)
        own = path.lstat()
        try:
            listener.listen(_MOST_CLIENTS)
            yield listener
        finally:
            with suppress(OSError):
                # Another process may have replaced the socket meanwhile.
                if os.path.samestat(path.lstat(), own):
                    path.unlink()


def _make_room(path: Path) -> None:
    """Removes the socket of a server that was killed.

    Raises:
        UsageError, RunError: the path is something else, or a process listens there.
    """
    check_output(path, replaced=False)
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise UsageError("something else is there", where=str(path), hint="remove it, or name another")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(os.fsencode(path))
        except ConnectionRefusedError:
            with suppress(FileNotFoundError):
                path.unlink()
            return
        except BlockingIOError:  # a listener exists, and its queue is full
            pass
        except OSError as error:
            raise RunError(f"something is there: {error.strerror}", where=str(path), hint="name another") from None
    raise UsageError("another process listens there", where=str(path), hint="end it, or name another")


def _turn(
    listener: socket.socket, selector: selectors.BaseSelector, clients: dict[int, _Client], text: Callable[[], str]
) -> None:
    """Waits for an event on a connection or a time limit, and handles it."""
    now = time.monotonic()
    for late in [one for one in clients.values() if one.ends <= now]:
        _drop(late, selector, clients)
    patience = min((one.ends for one in clients.values()), default=None)
    made: list[bytes] = []  # clients that ask at the same time get the same answer

    def answer() -> bytes:
        if not made:
            made.append(_page(text))
        return made[0]

    for key, _ in selector.select(None if patience is None else max(patience - now, 0.0)):
        client = clients.get(key.fd)
        if client is not None:
            if not _advance(client, selector, answer):
                _drop(client, selector, clients)
        elif key.fileobj is listener:
            _accept(listener, selector, clients)


def _accept(listener: socket.socket, selector: selectors.BaseSelector, clients: dict[int, _Client]) -> None:
    try:
        connection, _ = listener.accept()
    except OSError:  # the client has gone, or no descriptor is left, so the oldest connection is closed
        if clients:
            _drop(next(iter(clients.values())), selector, clients)
        else:
            time.sleep(0.1)
        return
    # The permissions of the socket have the same effect, unless they were changed.
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user not in (0, os.geteuid()):
        connection.close()
        return
    if len(clients) == _MOST_CLIENTS:
        _drop(next(iter(clients.values())), selector, clients)
    connection.setblocking(False)
    clients[connection.fileno()] = _Client(connection)
    selector.register(connection, selectors.EVENT_READ)


def _drop(client: _Client, selector: selectors.BaseSelector, clients: dict[int, _Client]) -> None:
    del clients[client.connection.fileno()]
    selector.unregister(client.connection)
    client.connection.close()


def _advance(client: _Client, selector: selectors.BaseSelector, page: Callable[[], bytes]) -> bool:
    """Reads from a client, or writes to it, without blocking. Returns False if the client is done."""
    try:
        if client.answer:
            client.answer = client.answer[client.connection.send(client.answer) :]
            return bool(client.answer)
        part = client.connection.recv(_MOST_REQUEST)
    except BlockingIOError:
        return True
    except OSError:
        return False
    client.request += part
    if b"\r\n\r\n" in client.request or b"\n\n" in client.request:
        client.answer = (
            page() if client.request.startswith(b"GET ") else _reply("405 Method Not Allowed", "GET alone\n")
        )
    elif len(client.request) > _MOST_REQUEST:
        client.answer = _reply("431 Request Header Fields Too Large", f"at most {_MOST_REQUEST} bytes\n")
    else:
        return bool(part)
    selector.modify(client.connection, selectors.EVENT_WRITE)
    return True


def _page(text: Callable[[], str]) -> bytes:
    try:
        return _reply("200 OK", text(), _TYPE)
    except CollcError as error:
        return _reply("500 Internal Server Error", f"{error}\n")


def _reply(status: str, body: str, kind: str = "text/plain; charset=utf-8") -> bytes:
    data = body.encode()
    head = f"HTTP/1.0 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    return head.encode() + data
