"""Measures the rate from one server to another over a pair of interfaces: plain TCP for a fraction of a second.

Listeners are open while `collc probe --cluster --measure` runs, and only on the interfaces that are measured. Sender
and listener prove to each other that they know the secret of this run before the listener reads any other data. The
secret is in the folder where the processes meet. The listener counts received bytes and discards them.
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
from collc.network.handshake import HANDSHAKE_SECONDS, answer_handshake, key_of, start_handshake

_HELLO = struct.Struct("!II")  # round, sender
_BLOCK_BYTES = 1 << 18
_STREAMS = 4
# Connections of one listener that have not yet proved that they know the secret.
_MAX_STRANGERS = 64
# The fraction of a transfer, from its begin, that is not counted, because TCP is still increasing its rate.
_WARMUP_RATIO = 0.25


@dataclass
class _Count:
    """The bytes of one transfer; all its streams add to one count.

    Attributes:
        first, last: seconds of the monotonic clock when the first and the last counted bytes arrived; 0 before that.
        warm: bytes that arrived after the warm-up.
    """

    first: float = 0.0
    last: float = 0.0
    warm: int = 0


class Listener:
    """Counts the bytes that other servers send to some addresses of this server.

    Args:
        addresses: interface -> address to listen on.
        secret: the secret of this run.
        seconds: the duration of each transfer.
    """

    def __init__(self, addresses: dict[str, str], secret: str, seconds: float) -> None:
        self._key = _key(secret)
        self._seconds = seconds
        self._lock = threading.Lock()
        self._counts: dict[tuple[int, int], _Count] = {}
        self._strangers = threading.BoundedSemaphore(_MAX_STRANGERS)
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
        """Returns the GB/s that arrived from a sender in a round, and forgets the count.

        Returns:
            None if the sender did not connect; 0 if bytes arrived for less than a tenth of the transfer's duration,
            which begins after the warm-up.
        """
        with self._lock:
            count = self._counts.pop((number, sender), None)
        if count is None:
            return None
        duration = count.last - count.first - _WARMUP_RATIO * self._seconds
        return count.warm / duration / 1e9 if duration > 0.1 * self._seconds else 0.0

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
                connection.settimeout(HANDSHAKE_SECONDS)
                hello = self._welcome(connection)
            finally:
                self._strangers.release()
            if hello is not None:
                self._count(connection, hello)

    def _welcome(self, connection: socket.socket) -> tuple[int, int] | None:
        hello = answer_handshake(connection, self._key, _HELLO.size)
        if hello is None:
            return None
        number, sender = _HELLO.unpack(hello)
        return number, sender

    def _count(self, connection: socket.socket, hello: tuple[int, int]) -> None:
        buffer = bytearray(_BLOCK_BYTES)
        with self._lock:
            count = self._counts.setdefault(hello, _Count())
        end = time.monotonic() + 2 * self._seconds + HANDSHAKE_SECONDS
        while time.monotonic() < end:
            size = connection.recv_into(buffer)
            if not size:
                return
            now = time.monotonic()
            with self._lock:
                count.first = count.first or now
                if now > count.first + 2 * self._seconds:
                    # A slow path still delivers bytes, and enough are counted. The loop reads on, because a stream that
                    # began late would take a closed connection for a failure.
                    continue
                if now > count.first + _WARMUP_RATIO * self._seconds:
                    count.warm += size
                count.last = now


def send(address: tuple[str, int], source: str, secret: str, number: int, sender: int, seconds: float) -> str:
    """Sends for some seconds over several streams from one address to a listener.

    Args:
        address: host and port of the listener.
        source: the local address, which selects the interface.
        secret: the secret of this run.
        number, sender: the round and the sender's rank, under which the listener counts.
        seconds: the duration of the transfer.

    Returns:
        The first problem, or "".
    """
    problems: list[str] = []

    def stream() -> None:
        try:
            with _connect(address, source, seconds) as connection:
                start_handshake(connection, _key(secret), _HELLO.pack(number, sender))
                block = bytes(_BLOCK_BYTES)
                end = time.monotonic() + seconds
                # A block that makes no progress for this long ends the stream.
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
        thread.join(HANDSHAKE_SECONDS + 4 * seconds + 5)
    return problems[0] if problems else ""


@contextlib.contextmanager
def _connect(address: tuple[str, int], source: str, seconds: float) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        # The buffer is small, so that only few of the sent bytes are still in the kernel at the end.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BLOCK_BYTES)
        connection.settimeout(HANDSHAKE_SECONDS)
        connection.bind((source, 0))
        connection.connect(address)
        yield connection


def _key(secret: str) -> bytes:
    return key_of("collc probe --measure", secret)
