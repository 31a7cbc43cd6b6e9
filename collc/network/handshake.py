"""TCP connections on which both ends prove that they know a secret, before any other data is processed.

The listener sends 32 random bytes. The caller answers with 32 random bytes, its hello, and an HMAC-SHA256 of these
three. The listener answers with an HMAC of the same data in another order. The secret is never sent, and an intercepted
proof is useless for the next connection.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import queue
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from hashlib import sha256

from collc.network.interfaces import family_of, socket_address

NONCE_BYTES = 32
MAC_BYTES = 32
HANDSHAKE_SECONDS = 5.0
_MOST_UNPROVED = 128
_DEAD_SECONDS = 60  # a connection fails after this time without any answer of the other machine's kernel


def key_of(purpose: str, secret: str) -> bytes:
    """Returns the key of a secret for one purpose. Proofs for one purpose are not valid for another."""
    return sha256(purpose.encode() + b" " + secret.encode(errors="surrogateescape")).digest()


class PeerClosedError(OSError):
    """Raised if the other end closes the connection before it has proved that it knows the secret."""


def answer_handshake(connection: socket.socket, key: bytes, hello_bytes: int) -> bytes | None:
    """Does the listener's part of the handshake. Returns the caller's hello, or None if it does not know the secret.

    Args:
        hello_bytes: the size of the hello.

    Raises:
        OSError: the caller has closed the connection or is too slow.
    """
    answer = _receive_hello(connection, key, hello_bytes)
    if answer is None:
        return None
    hello, proof = answer
    connection.sendall(proof)
    return hello


def _receive_hello(connection: socket.socket, key: bytes, hello_bytes: int) -> tuple[bytes, bytes] | None:
    """Receives the caller's hello and proof. Returns the hello and the listener's proof, or None for a wrong proof.

    The caller waits for the listener's proof.
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    connection.sendall(nonce)
    message = _receive(connection, NONCE_BYTES + hello_bytes + MAC_BYTES)
    caller_nonce, hello, mac = message[:NONCE_BYTES], message[NONCE_BYTES:-MAC_BYTES], message[-MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(key, b"connect", nonce + caller_nonce + hello)):
        return None
    return hello, _mac(key, b"accept", caller_nonce + nonce + hello)


def start_handshake(connection: socket.socket, key: bytes, hello: bytes) -> None:
    """Does the caller's part of the handshake.

    Raises:
        OSError: the listener does not know the secret, has closed the connection, or is too slow.
    """
    nonce, caller_nonce = _receive(connection, NONCE_BYTES), secrets.token_bytes(NONCE_BYTES)
    connection.sendall(caller_nonce + hello + _mac(key, b"connect", nonce + caller_nonce + hello))
    if not hmac.compare_digest(_receive(connection, MAC_BYTES), _mac(key, b"accept", caller_nonce + nonce + hello)):
        raise OSError(0, "the other end does not know the secret")


def _receive(connection: socket.socket, size: int) -> bytes:
    """Returns the next `size` bytes. They must arrive within `HANDSHAKE_SECONDS`.

    Raises:
        OSError: the other end closed the connection, or was too slow.
    """
    data = b""
    end = time.monotonic() + HANDSHAKE_SECONDS
    while len(data) < size:
        if time.monotonic() > end:
            raise TimeoutError
        more = connection.recv(size - len(data))
        if not more:
            raise PeerClosedError(0, "the other end closed the connection")
        data += more
    return data


def watch_peer(connection: socket.socket) -> None:
    """Lets a connection fail after a minute without an answer of the other machine, even if nothing is sent."""
    tcp = socket.IPPROTO_TCP
    for level, option, value in (
        (tcp, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (tcp, socket.TCP_KEEPIDLE, _DEAD_SECONDS // 4),
        (tcp, socket.TCP_KEEPINTVL, _DEAD_SECONDS // 4),
        (tcp, socket.TCP_KEEPCNT, 3),
        (tcp, socket.TCP_USER_TIMEOUT, _DEAD_SECONDS * 1000),
    ):
        connection.setsockopt(level, option, value)


class HandshakeListener:
    """Listens on an address and, after `start`, accepts callers that know the secret.

    At most 128 connections may be without proof at a time, each for at most five seconds. The oldest one is closed for
    a new one.

    Raises:
        OSError: this process cannot listen there.
    """

    def __init__(self, address: str, port: int, key: bytes, hello_bytes: int) -> None:
        self._key, self._hello_bytes = key, hello_bytes
        self._callers: queue.SimpleQueue[tuple[bytes, socket.socket]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._unproved: deque[socket.socket] = deque()
        self._admission = threading.Lock()  # held while a caller gets the proof and enters `_callers`
        self._closed = False
        self._socket = socket.socket(family_of(address), socket.SOCK_STREAM)
        try:
            # A port that the user chose may have been in use a moment ago.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(socket_address(address, port))
            self._socket.listen(1024)
        except OSError:
            self._socket.close()
            raise
        self.port = int(self._socket.getsockname()[1])

    def start(self, on_caller: Callable[[], None] = lambda: None) -> None:
        """Starts to accept callers.

        Args:
            on_caller: a thread of the listener calls it when `next` can return another caller.
        """
        self._on_caller = on_caller
        threading.Thread(target=self._accept, name="collc listener", daemon=True).start()

    def next(self, seconds: float) -> tuple[bytes, socket.socket]:
        """Returns the hello of the next caller, and the connection.

        If `connect_with_secret` has returned on the caller's side, this finds the caller even with 0 seconds.

        Raises:
            TimeoutError: no caller came in time.
        """
        try:
            with self._admission:
                return self._callers.get_nowait()
        except queue.Empty:
            pass
        try:
            return self._callers.get(timeout=max(0.0, seconds))
        except queue.Empty:
            raise TimeoutError from None

    def close(self) -> None:
        """Stops listening, and closes the connections that `next` has not returned."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            for connection in self._unproved:
                _shut_down(connection)
        with contextlib.suppress(queue.Empty):
            while True:
                self._callers.get_nowait()[1].close()

    def leave_to_parent(self) -> None:
        """Closes this process's copies of the descriptors. For a forked child, which has no thread of the listener."""
        self._closed = True
        copies = [self._socket, *self._unproved]
        with contextlib.suppress(queue.Empty):
            while True:
                copies.append(self._callers.get_nowait()[1])
        for copy in copies:
            with contextlib.suppress(OSError):
                os.close(copy.detach())

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(0.02)  # no descriptor is left, so the connections without proof are closed
                self._close_oldest(0)
                continue
            with self._lock:
                self._unproved.append(connection)
            self._close_oldest(_MOST_UNPROVED)
            threading.Thread(target=self._handle_caller, args=(connection,), name="collc listener", daemon=True).start()

    def _close_oldest(self, limit: int) -> None:
        with self._lock:
            while len(self._unproved) > limit:
                _shut_down(self._unproved.popleft())

    def _handle_caller(self, connection: socket.socket) -> None:
        answer = None
        with contextlib.suppress(OSError):
            connection.settimeout(HANDSHAKE_SECONDS)
            answer = _receive_hello(connection, self._key, self._hello_bytes)
        with self._lock, contextlib.suppress(ValueError):
            self._unproved.remove(connection)
        if answer is None or self._closed or not self._admit(connection, *answer):
            connection.close()

    def _admit(self, connection: socket.socket, hello: bytes, proof: bytes) -> bool:
        try:
            with self._admission:
                connection.sendall(proof)
                connection.settimeout(None)
                watch_peer(connection)
                self._callers.put((hello, connection))
        except OSError:
            return False
        self._on_caller()
        return True


def connect_with_secret(address: str, port: int, key: bytes, hello: bytes) -> socket.socket:
    """Returns a connection with a `HandshakeListener`, after both ends have proved that they know the secret.

    Raises:
        OSError: nothing listens there, or the listener does not know the secret.
    """
    connection = socket.socket(family_of(address), socket.SOCK_STREAM)
    try:
        connection.settimeout(HANDSHAKE_SECONDS)
        connection.connect(socket_address(address, port))
        start_handshake(connection, key, hello)
        connection.settimeout(None)
        watch_peer(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _shut_down(connection: socket.socket) -> None:
    """Shuts down a connection on which another thread waits. That thread closes it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _mac(key: bytes, what: bytes, text: bytes) -> bytes:
    return hmac.new(key, what + text, sha256).digest()
