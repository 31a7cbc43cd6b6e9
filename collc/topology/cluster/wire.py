"""How fast one server reaches another over a pair of interfaces: plain TCP for a fraction of a second.

Listeners are open while `collc probe --cluster --measure` runs, on the interfaces that are measured alone. A connection
proves that it knows the secret of this run, and so does the listener, before anything that it says is looked at; the
secret lies in the folder in which the processes meet. Whatever arrives is counted and thrown away.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from collc.errors import RunError
from collc.network.greeting import STRANGER_SECONDS, introduce, key_of, welcome

_HELLO = struct.Struct("!II")  # round, sender
_BLOCK = 1 << 18
_STREAMS = 4
_MOST_STRANGERS = 64
# What the first part of a transfer shows is how TCP starts.
_WARMUP = 0.25


@dataclass
class _Count:
    """Bytes of one transfer, by when they came; several streams add to it."""

    first: float = 0.0
    last: float = 0.0
    warm: int = 0
    streams: int = 0


class Listener:
    """Counts what others send to some addresses of this server.

    Args:
        addresses: interface -> address to listen on.
        seconds: how long each transfer lasts.
    """

    def __init__(self, addresses: dict[str, str], secret: str, seconds: float) -> None:
        self._key = _key(secret)
        self._seconds = seconds
        self._lock = threading.Lock()
        self._counts: dict[tuple[int, int], _Count] = {}
        self._strangers = threading.BoundedSemaphore(_MOST_STRANGERS)
        self._closed = False
        self._sockets: list[socket.socket] = []
        self.ports: dict[str, tuple[str, int]] = {}
        for interface, address in addresses.items():
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.bind((address, 0))
                sock.listen(64)
            except OSError as error:
                sock.close()
                self.close()
                what = f"cannot listen on {interface} ({address}): {error.strerror}"
                raise RunError(what, where="probe --measure") from None
            self._sockets.append(sock)
            self.ports[interface] = (address, sock.getsockname()[1])
            threading.Thread(target=self._accept, args=(sock,), name=f"measure {interface}", daemon=True).start()

    def rate(self, number: int, sender: int) -> float | None:
        """GB/s that arrived from a sender in a round; None where nothing did."""
        with self._lock:
            count = self._counts.pop((number, sender), None)
        if count is None:
            return None
        lasted = count.last - count.first - _WARMUP * self._seconds
        return count.warm / lasted / 1e9 if lasted > 0.1 * self._seconds else 0.0

    def close(self) -> None:
        """Stops listening."""
        self._closed = True
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self, sock: socket.socket) -> None:
        while not self._closed:
            try:
                connection, _ = sock.accept()
            except OSError:
                return
            if not self._strangers.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), name="measure", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            try:
                connection.settimeout(STRANGER_SECONDS)
                hello = self._welcome(connection)
            finally:
                self._strangers.release()
            if hello is not None:
                self._count(connection, hello)

    def _welcome(self, connection: socket.socket) -> tuple[int, int] | None:
        hello = welcome(connection, self._key, _HELLO.size)
        if hello is None:
            return None
        number, sender = _HELLO.unpack(hello)
        return number, sender

    def _count(self, connection: socket.socket, hello: tuple[int, int]) -> None:
        buffer = bytearray(_BLOCK)
        with self._lock:
            count = self._counts.setdefault(hello, _Count())
        end = time.monotonic() + 2 * self._seconds + STRANGER_SECONDS
        while time.monotonic() < end:
            size = connection.recv_into(buffer)
            if not size:
                return
            now = time.monotonic()
            with self._lock:
                count.first = count.first or now
                if now > count.first + 2 * self._seconds:
                    # What a slow way still holds: enough was seen. It is read all the same, for a stream that began
                    # late would take a closed connection for a failure.
                    continue
                if now > count.first + _WARMUP * self._seconds:
                    count.warm += size
                count.last = now


def send(address: tuple[str, int], source: str, secret: str, number: int, sender: int, seconds: float) -> str:
    """Sends for some seconds over several streams from one address to a listener; "" or what went wrong.

    Args:
        source: the own address, so that the interface is the one that is meant.
        number, sender: the round and who sends, for the listener's books.
    """
    problems: list[str] = []

    def stream() -> None:
        try:
            with _connect(address, source, seconds) as connection:
                introduce(connection, _key(secret), _HELLO.pack(number, sender))
                block = bytes(_BLOCK)
                end = time.monotonic() + seconds
                # Where nothing moves any more, this is how long it is waited for.
                connection.settimeout(max(1.0, seconds))
                while time.monotonic() < end:
                    connection.sendall(block)
        except TimeoutError:
            problems.append("nothing moves")
        except OSError as error:
            problems.append(error.strerror or str(error))

    threads = [threading.Thread(target=stream, name="measure", daemon=True) for _ in range(_STREAMS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(STRANGER_SECONDS + 4 * seconds + 5)
    return problems[0] if problems else ""


@contextlib.contextmanager
def _connect(address: tuple[str, int], source: str, seconds: float) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        # Small, so that what the kernel holds back at the end is little of what was sent.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BLOCK)
        connection.settimeout(STRANGER_SECONDS)
        connection.bind((source, 0))
        connection.connect(address)
        yield connection


def _key(secret: str) -> bytes:
    return key_of("collc probe --measure", secret)
