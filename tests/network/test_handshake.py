"""The door that ranks on other machines come through: who knows the secret gets in, and nobody else is in the way."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from collc.network import handshake
from collc.network.handshake import HandshakeListener, connect_with_secret, key_of

KEY = key_of("test", "secret")
HELLO = b"hello123"


@pytest.fixture
def tcp_listener() -> Iterator[HandshakeListener]:
    with contextlib.closing(HandshakeListener("127.0.0.1", 0, KEY, len(HELLO))) as made:
        made.start()
        yield made


def test_both_ends_get_a_connection(tcp_listener: HandshakeListener) -> None:
    with connect_with_secret("127.0.0.1", tcp_listener.port, KEY, HELLO) as ours:
        hello, theirs = tcp_listener.next(10)
        with theirs:
            assert hello == HELLO
            ours.sendall(b"there")
            assert theirs.recv(5) == b"there"
            theirs.sendall(b"back")
            assert ours.recv(4) == b"back"


@pytest.mark.parametrize("key", [key_of("test", "another"), key_of("another", "secret")])
def test_a_wrong_secret_is_seen_at_both_ends(tcp_listener: HandshakeListener, key: bytes) -> None:
    with pytest.raises(OSError, match="closed the connection"):
        connect_with_secret("127.0.0.1", tcp_listener.port, key, HELLO)
    with pytest.raises(TimeoutError):
        tcp_listener.next(0.2)


def test_a_listener_without_the_secret_is_seen_through() -> None:
    with socket.create_server(("127.0.0.1", 0)) as false, contextlib.ExitStack() as stack:

        def answer() -> None:
            connection, _ = false.accept()
            stack.enter_context(connection)
            connection.sendall(os.urandom(handshake.NONCE_BYTES))
            connection.recv(1000)
            connection.sendall(os.urandom(handshake.MAC_BYTES))

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(OSError, match="does not know the secret"):
            connect_with_secret("127.0.0.1", false.getsockname()[1], KEY, HELLO)


def test_an_overheard_proof_is_worth_nothing_the_second_time(tcp_listener: HandshakeListener) -> None:
    with socket.create_connection(("127.0.0.1", tcp_listener.port)) as first:
        nonce, own = first.recv(32), os.urandom(32)
        said = own + HELLO + handshake._mac(KEY, b"connect", nonce + own + HELLO)
        first.sendall(said)
        assert len(first.recv(64)) == 32
        tcp_listener.next(10)[1].close()
    with socket.create_connection(("127.0.0.1", tcp_listener.port)) as second:
        second.recv(32)
        second.sendall(said)
        assert second.recv(64) == b""


def _knock_until_let_in(port: int) -> socket.socket:
    """As ranks do: one that is not answered in time, on a machine with much else to do, comes again."""
    until = time.monotonic() + 120
    while True:
        try:
            return connect_with_secret("127.0.0.1", port, KEY, HELLO)
        except OSError:
            if time.monotonic() > until:
                raise


def test_strangers_are_not_in_the_way(tcp_listener: HandshakeListener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage, and 500 that say nothing: a rank still gets in, and the strangers are gone in the end."""
    monkeypatch.setattr(handshake, "HANDSHAKE_SECONDS", 2.0)
    with contextlib.ExitStack() as stack:
        for text in (b"GET / HTTP/1.1\r\n\r\n" * 10, os.urandom(1000), b"", b"x"):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", tcp_listener.port)))
            stranger.sendall(text)
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", tcp_listener.port), timeout=120))
            for _ in range(500)
        ]
        with _knock_until_let_in(tcp_listener.port):
            hello, connection = tcp_listener.next(60)
            connection.close()
        assert hello == HELLO
        for stranger in silent:
            with contextlib.suppress(ConnectionResetError):
                while stranger.recv(1000):
                    pass


def test_closing_sends_everybody_away() -> None:
    tcp_listener = HandshakeListener("127.0.0.1", 0, KEY, len(HELLO))
    tcp_listener.start()
    with socket.create_connection(("127.0.0.1", tcp_listener.port), timeout=20) as stranger:
        with connect_with_secret("127.0.0.1", tcp_listener.port, KEY, HELLO) as rank:
            until = time.monotonic() + 20
            while tcp_listener._callers.empty() and time.monotonic() < until:
                time.sleep(0.01)
            tcp_listener.close()
            rank.settimeout(20)
            assert rank.recv(1) == b""
        stranger.recv(32)
        assert stranger.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        connect_with_secret("127.0.0.1", tcp_listener.port, KEY, HELLO)
