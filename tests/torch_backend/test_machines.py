"""Ranks on several machines: processes that name themselves by COLLC_HOSTID, and meet by TCP on the loopback."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")

import torch.distributed as dist  # noqa: E402
from torch_backend.launch import forked  # noqa: E402
from torch_backend.test_mailbox import LARGE, SECONDS, SMALL, STRANGERS, exchange  # noqa: E402

from collc.network.machine import this_machine  # noqa: E402
from collc.topology.load import loads_topology  # noqa: E402
from collc.torch import links  # noqa: E402
from collc.torch.group import CollcProcessGroup  # noqa: E402
from collc.torch.library import topology_of  # noqa: E402
from collc.torch.links import Listener  # noqa: E402
from collc.torch.mailbox import Mailbox  # noqa: E402


@pytest.mark.parametrize("hosts", ["aab", pytest.param("aba", marks=pytest.mark.slow)])
def test_every_collective(hosts: str) -> None:
    assert "all right" in forked(3, "collectives.py", hosts=hosts)


@pytest.mark.slow
@pytest.mark.parametrize("hosts", ["abb", "abc"])
def test_sends_and_receives(hosts: str) -> None:
    assert "all right" in forked(3, "point_to_point.py", hosts=hosts)


@pytest.mark.slow
def test_what_cannot_be_right_is_refused_with_its_reason() -> None:
    assert "all right" in forked(3, "refusals.py", hosts="aab")


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Mailbox, Mailbox]]:
    """Two mailboxes that take each other for ranks of other machines."""
    monkeypatch.setenv("COLLC_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(links, "_STRANGER_SECONDS", 2.0)
    listeners = [Listener(), Listener()]
    ports = [listener.open_port() for listener in listeners]
    addresses = [f"{one.name} {one.secret.hex()} elsewhere {port}" for one, port in zip(listeners, ports, strict=True)]
    with contextlib.ExitStack() as stack:
        made = [Mailbox(listener, addresses, rank) for rank, listener in enumerate(listeners)]
        for one in made:
            stack.callback(one.close)
        yield made[0], made[1]


@pytest.mark.parametrize("count", [0, 1, SMALL, LARGE])
def test_what_is_sent_arrives(pair: tuple[Mailbox, Mailbox], count: int) -> None:
    exchange(*pair, count)
    (connection,) = pair[0]._links._to.values()
    assert connection.sock.family == socket.AF_INET
    assert not connection.readable


def test_strangers_at_the_port_are_shown_the_door(pair: tuple[Mailbox, Mailbox]) -> None:
    """What is no hello with the secret, and 300 that say nothing, of which 128 may sit down for a while."""
    *_, host, port = pair[1]._links._addresses[1].split()
    with contextlib.ExitStack() as stack:

        def connect() -> socket.socket:
            return stack.enter_context(socket.create_connection((host, int(port)), timeout=SECONDS))

        silent = [connect() for _ in range(300)]
        for name, words in STRANGERS.items():
            stranger = connect()
            stranger.sendall(words)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b"", name
        exchange(*pair, LARGE)
        for sock in silent:
            assert sock.recv(1) == b""
    exchange(*pair, SMALL)


def test_one_machine_listens_on_no_port() -> None:
    listener = Listener()
    try:
        assert [sock.family for sock in listener.sockets] == [socket.AF_UNIX]
    finally:
        listener.close()


def test_a_rank_without_a_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1, on another machine, cannot listen; rank 0 neither, by a variable of its own."""
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
