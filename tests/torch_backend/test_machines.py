"""Ranks on several machines: processes that name themselves by COLLC_HOSTID, and meet by TCP on the loopback."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")

import torch.distributed as dist  # noqa: E402
from torch_backend.launch import forked  # noqa: E402
from torch_backend.test_mailbox import LARGE, SECONDS, SMALL, STRANGERS, exchange  # noqa: E402

from collc.network import handshake  # noqa: E402
from collc.network.handshake import HandshakeListener  # noqa: E402
from collc.network.machine import this_machine  # noqa: E402
from collc.topology.load import loads_topology  # noqa: E402
from collc.torch.group import CollcProcessGroup  # noqa: E402
from collc.torch.library import topology_of  # noqa: E402
from collc.torch.listener import Listener  # noqa: E402
from collc.torch.mailbox import Mailbox  # noqa: E402


@pytest.mark.parametrize("hosts", ["aab", pytest.param("aba", marks=pytest.mark.slow)])
@pytest.mark.slow_for("aab")
def test_every_collective(hosts: str) -> None:
    assert "all right" in forked(3, "collectives.py", hosts=hosts)


@pytest.mark.slow
@pytest.mark.parametrize("hosts", ["abb", "abc"])
def test_sends_and_receives(hosts: str) -> None:
    assert "all right" in forked(3, "point_to_point.py", hosts=hosts)


@pytest.mark.slow
def test_what_cannot_be_right_is_refused_with_its_reason() -> None:
    assert "all right" in forked(3, "refusals.py", hosts="aab")


@contextlib.contextmanager
def mailboxes(way: Callable[[str], str] = str) -> Iterator[tuple[Mailbox, Mailbox]]:
    """Two mailboxes that take each other for ranks of other machines; `way` may give rank 1 another public address."""
    listeners = [Listener(), Listener()]
    ports = [listeners[0].open_port(), way(listeners[1].open_port())]
    addresses = [f"{one.name} {one.secret.hex()} elsewhere {port}" for one, port in zip(listeners, ports, strict=True)]
    with contextlib.ExitStack() as stack:
        made = [Mailbox(listener, addresses, rank) for rank, listener in enumerate(listeners)]
        for one in made:
            stack.callback(one.close)
        yield made[0], made[1]


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLC_SOCKET_IFNAME", "lo")


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Mailbox, Mailbox]]:
    monkeypatch.setattr(handshake, "HANDSHAKE_SECONDS", 2.0)
    with mailboxes() as made:
        yield made


class Sniffer:
    """A relay to a port, which keeps what callers send."""

    def __init__(self) -> None:
        self.sent: list[bytearray] = []
        self._listening = socket.create_server(("127.0.0.1", 0))

    def stand_before(self, public: str) -> str:
        """Begins to relay to a public address; returns the address of the relay."""
        self.host, self.port = public.split()
        threading.Thread(target=self._serve, daemon=True).start()
        return f"127.0.0.1 {self._listening.getsockname()[1]}"

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host, int(self.port)), timeout=SECONDS)

    def _serve(self) -> None:
        while True:
            near, _ = self._listening.accept()
            far, words = self.connect(), bytearray()
            self.sent.append(words)
            threading.Thread(target=_copy, args=(near, far, words), daemon=True).start()
            threading.Thread(target=_copy, args=(far, near, bytearray()), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket, kept: bytearray) -> None:
    with contextlib.suppress(OSError):
        while words := source.recv(1 << 16):
            kept += words
            target.sendall(words)
        target.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("count", [0, 1, SMALL, LARGE])
def test_what_is_sent_arrives(pair: tuple[Mailbox, Mailbox], count: int) -> None:
    exchange(*pair, count)
    (connection,) = pair[0]._links._to.values()
    assert connection.sock.family == socket.AF_INET
    assert not connection.readable


def read_to_end(stranger: socket.socket) -> None:
    """Reads the listener's random bytes and nothing else: then the connection ends."""
    words = b""
    with contextlib.suppress(ConnectionResetError):
        while more := stranger.recv(100):
            words += more
    assert len(words) in (0, handshake.NONCE_BYTES), words


def test_strangers_at_the_port_are_shown_the_door(pair: tuple[Mailbox, Mailbox]) -> None:
    """Wrong hellos are refused. 300 silent connections come too, and 128 of them may stay for a while."""
    *_, host, port = pair[1]._links._addresses[1].split()
    with contextlib.ExitStack() as stack:

        def connect() -> socket.socket:
            return stack.enter_context(socket.create_connection((host, int(port)), timeout=SECONDS))

        silent = [connect() for _ in range(300)]
        for words in STRANGERS.values():
            stranger = connect()
            stranger.sendall(words)
            read_to_end(stranger)
        exchange(*pair, LARGE)
        for sock in silent:
            read_to_end(sock)
    exchange(*pair, SMALL)


def test_words_of_a_rank_that_somebody_sniffed_admit_nobody() -> None:
    """The secret does not travel, and a hello with its proof is worth nothing in another connection."""
    sniffer = Sniffer()
    with mailboxes(sniffer.stand_before) as (first, second):
        exchange(first, second, LARGE)
        (words,) = sniffer.sent
        assert second._links._listener.secret not in words
        connections = list(second._links._all.values())
        with sniffer.connect() as stranger:
            stranger.sendall(words)
            read_to_end(stranger)
        exchange(first, second, SMALL)
        assert list(second._links._all.values()) == connections


def test_a_rank_may_leave_its_caller_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the listener answers, its caller holds no lock and sends what it was given later."""
    monkeypatch.setattr(handshake, "HANDSHAKE_SECONDS", 0.5)
    start, closed = HandshakeListener.start, list[tuple[HandshakeListener, Callable[[], None]]]()
    monkeypatch.setattr(HandshakeListener, "start", lambda *tcp_listener: closed.append(tcp_listener))
    with mailboxes() as (first, second):
        sent = first.send([torch.ones(SMALL)], 1, 0, SECONDS)
        assert first._lock.acquire(timeout=SECONDS)
        first._lock.release()
        got = torch.zeros(SMALL)
        waiting = second.receive([got], 0, 0, SECONDS)
        time.sleep(1.2)  # longer than one attempt
        for tcp_listener in closed:
            start(*tcp_listener)
        waiting.wait()
        sent.wait()
        assert (got == 1).all()


def test_one_machine_listens_on_no_port() -> None:
    listener = Listener()
    try:
        assert listener.tcp_listener is None
    finally:
        listener.close()


def test_a_rank_without_a_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1, on another machine, cannot listen. Rank 0 cannot either, because of a variable in its environment."""
    monkeypatch.setenv("COLLC_HOSTID", "another")
    elsewhere = this_machine()
    monkeypatch.delenv("COLLC_HOSTID")

    def group(told: str) -> None:
        store = dist.HashStore()
        store.set("collc-rank-1", f"collc-{'0' * 32} {'0' * 32} {elsewhere}")
        store.set("collc-port-1", told)
        CollcProcessGroup(store, 0, 2, timedelta(seconds=5))

    monkeypatch.setenv("COLLC_SOCKET_IFNAME", "lo")
    with pytest.raises(RuntimeError, match="rank 1 has no port for other machines: node1: no eth7"):
        group("!node1: no eth7")
    monkeypatch.setenv("COLLC_NET_TLS", "1")
    with (
        pytest.warns(RuntimeWarning, match="what send and recv carry between machines travels in plain text"),
        pytest.raises(RuntimeError, match="rank 1 has no port for other machines"),
    ):
        group("!node1: no eth7")
    monkeypatch.setenv("COLLC_NET_TLS", "0")
    monkeypatch.setenv("COLLC_SOCKET_IFNAME", "eth77")
    with pytest.raises(RuntimeError, match="no network interface called eth77 is up"):
        group("127.0.0.1 1")


def test_the_topology_of_several_machines() -> None:
    found = loads_topology(topology_of([5, 3, 1]), "machines.yaml")
    gpus = [[name for name in found.servers[f"server{s}"] if name.startswith("gpu")] for s in range(3)]
    assert list(map(len, gpus)) == [5, 3, 1]
