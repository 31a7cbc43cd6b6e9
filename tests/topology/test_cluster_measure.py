"""`collc probe --cluster --measure`: plain TCP between servers finds what is slow, and counts for nobody else."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from support import lab, nvml

from collc.errors import UsageError
from collc.network import handshake
from collc.topology.cluster import wire
from collc.topology.cluster.rounds import Transfer, address_of, interfaces, look_again, slow_lines
from collc.topology.cluster.wire import Listener, send
from collc.topology.load import loads_topology

SERVERS = ["a", "b", "c", "d", "e"]
WHY_NO_LAB = lab.why_not()


def transfers(
    servers: list[str], slow: set[tuple[str, str, str]], interfaces: tuple[str, ...] = ("e0", "e1"), ratio: float = 0.4
) -> list[Transfer]:
    """Rounds with up to three shifts; `slow` has (server, interface, "out" or "in") and ("a>b", interface, "")."""
    found = []
    for interface in interfaces:
        for shift in range(1, min(len(servers) - 1, 3) + 1):
            for j, src in enumerate(servers):
                dst = servers[(j + shift) % len(servers)]
                bad = {(src, interface, "out"), (dst, interface, "in"), (f"{src}>{dst}", interface, "")} & slow
                # Busy machines: rates differ by a tenth.
                rate = 5.0 * (1 - 0.1 * ((j * 7 + shift * 3) % 10) / 10)
                found.append(Transfer(src, dst, interface, rate * ratio if bad else rate))
    return found


@pytest.mark.parametrize("number", [3, 4, 5])
def test_every_slow_interface_is_named_alone(number: int) -> None:
    servers = SERVERS[:number]
    assert slow_lines(transfers(servers, set()), {}) == []
    for server, interface, ways in itertools.product(servers, ("e0", "e1"), (("out",), ("in",), ("out", "in"))):
        lines = slow_lines(transfers(servers, {(server, interface, way) for way in ways}), {})
        assert len(lines) == 1, lines
        assert lines[0].startswith(f"{server}: slow over {interface}: ")
        assert ("sends" in lines[0]) == ("out" in ways)
        assert ("receives" in lines[0]) == ("in" in ways)


def test_every_slow_pair_is_named_alone() -> None:
    for src, dst in itertools.permutations(SERVERS, 2):
        lines = slow_lines(transfers(SERVERS, {(f"{src}>{dst}", "e1", "")}), {})
        met = any((t.src, t.dst) == (src, dst) for t in transfers(SERVERS, set()))
        assert [line.partition(":")[0] for line in lines] == ([f"{src} to {dst}"] if met else [])


def test_of_two_servers_the_way_is_named() -> None:
    lines = slow_lines(transfers(["a", "b"], {("a", "e1", "out")}), {})
    assert [line.partition(": ")[0] for line in lines] == ["a to b"]
    assert lines[0].startswith("a to b: slow over e1: 1.94 GB/s of the usual ")
    assert len(slow_lines(transfers(["a", "b"], {("a", "e1", "out"), ("a", "e1", "in")}), {})) == 2


def disturbed(found: list[Transfer], each: int, ratio: float = 0.3) -> list[Transfer]:
    """Every third transfer at a fraction of its rate, another third each time."""
    return [replace(t, gbps=t.gbps * ratio) if (j + each) % 3 == 0 else t for j, t in enumerate(found)]


def test_what_a_busy_processor_slowed_is_measured_again_and_not_named() -> None:
    quiet = transfers(SERVERS, {("b", "e1", "out")})
    called = [(quiet[at].interface, [(t.src, t.dst) for t in quiet[at : at + 5]]) for at in range(0, 30, 5)]
    first = disturbed(quiet, 0)
    assert len(slow_lines(first, {})) > 1
    times = [0] * len(called)

    def call(number: int) -> list[Transfer]:
        times[number] += 1
        return disturbed(quiet, times[number])[5 * number : 5 * number + 5]

    found = look_again(first, called, {}, call)
    assert [line.partition(":")[0] for line in slow_lines(found, {})] == ["b"]
    assert len(found) == len(quiet)
    assert max(times) <= 6


def test_what_is_slow_each_time_is_measured_twice_more_and_what_is_not_never() -> None:
    quiet = transfers(SERVERS[:3], {("b", "e1", "out"), ("b", "e1", "in")})
    called = [(quiet[at].interface, [(t.src, t.dst) for t in quiet[at : at + 3]]) for at in range(0, 12, 3)]
    calls = []

    def call(number: int) -> list[Transfer]:
        calls.append(number)
        return quiet[3 * number : 3 * number + 3]

    assert look_again(quiet, called, {}, call) == quiet
    assert calls == [2, 3, 2, 3]


def test_interfaces_of_other_speeds_are_not_compared() -> None:
    found = transfers(SERVERS, {(s, "e1", "out") for s in SERVERS})
    assert slow_lines(found, {})
    nominal = {(s, i): Fraction(50 if i == "e0" else 20) for s in SERVERS for i in ("e0", "e1")}
    assert slow_lines(found, nominal) == []


@contextlib.contextmanager
def listening(secret: str = "s", seconds: float = 0.2):  # type: ignore[no-untyped-def]
    listener = Listener({"lo": "127.0.0.1"}, secret, seconds)
    try:
        yield listener, listener.ports["lo"]
    finally:
        listener.close()


def heard(listener: Listener, number: int, sender: int) -> float | None:
    """The rate, once the thread that receives has counted anything; None after 10 seconds without."""
    for _ in range(1000):
        if (rate := listener.rate(number, sender)) is not None:
            return rate
        time.sleep(0.01)
    return None


def test_what_is_sent_is_counted_under_its_round_and_sender() -> None:
    with listening() as (listener, at):
        assert send(at, "127.0.0.1", "s", 3, 7, 0.2) == ""
        rate = heard(listener, 3, 7)
        assert listener.rate(3, 6) is None
        assert rate is not None
        assert rate > 0


def test_a_stream_that_begins_late_does_not_fail() -> None:
    """The listener has seen enough of the round when another stream of it begins."""
    with listening() as (listener, at):
        assert send(at, "127.0.0.1", "s", 5, 2, 0.2) == ""
        time.sleep(0.3)
        assert send(at, "127.0.0.1", "s", 5, 2, 0.5) == ""
        assert heard(listener, 5, 2) is not None


def test_a_stranger_is_not_counted_and_holds_nobody_up() -> None:
    with listening() as (listener, at):
        silent = [socket.create_connection(at) for _ in range(20)]
        assert send(at, "127.0.0.1", "another secret", 0, 0, 0.2) == "the other end closed the connection"
        with socket.create_connection(at) as garbage:
            garbage.settimeout(10)
            garbage.sendall(b"\0" * 200)
            received = b""
            with contextlib.suppress(OSError):
                while more := garbage.recv(1000):
                    received += more
            assert len(received) == 32  # a nonce, and then the end
        assert listener.rate(0, 0) is None
        assert send(at, "127.0.0.1", "s", 1, 1, 0.2) == ""
        assert heard(listener, 1, 1) is not None
        for connection in silent:
            connection.close()


def test_a_nonce_cannot_be_played_again() -> None:
    with listening() as (listener, at):
        with socket.create_connection(at) as first:
            theirs = first.recv(32)
            own, hello = os.urandom(32), wire._HELLO.pack(0, 9)
            mac = handshake._mac(wire._key("s"), b"connect", theirs + own + hello)
            first.sendall(own + hello + mac)
            assert len(first.recv(64)) == 32
            first.sendall(b"x" * 1000)
        with socket.create_connection(at) as second:
            second.recv(32)
            second.sendall(own + hello + mac)
            second.settimeout(10)
            with contextlib.suppress(OSError):
                assert second.recv(64) == b""
        assert heard(listener, 0, 9) == 0.0  # the first connection's, too short to be a rate


def test_an_impostor_that_listens_is_told_nothing() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        seen = []

        def serve() -> None:
            for _ in range(4):
                connection, _ = sock.accept()
                connection.sendall(b"n" * 32)
                seen.append(connection.recv(200))
                connection.sendall(b"m" * 32)
                connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert send(sock.getsockname(), "127.0.0.1", "s", 0, 0, 0.2) == "the other end does not know the secret"
        thread.join(10)
    assert all(wire._key("s") not in text for text in seen)


def test_nobody_listens_after_the_end() -> None:
    with listening() as (_, at):
        pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(at, timeout=2)


def test_the_loopback_has_an_address_and_unknown_interfaces_are_refused() -> None:
    assert address_of("lo") == "127.0.0.1"
    assert address_of("no-such0") is None
    machine = loads_topology(
        "format: collc-topology/1\ngpus: 1\nnics: [{name: n0, interface: lo}, {name: n1, interface: no-such0}, n2]\n"
    )
    assert interfaces(machine, []) == {"lo": "127.0.0.1"}
    with pytest.raises(UsageError, match="no interface `no-such0` with an address"):
        interfaces(machine, ["no-such0"])


@pytest.mark.skipif(bool(WHY_NO_LAB), reason=WHY_NO_LAB)
def test_one_slow_cable_among_servers_is_named(tmp_path: Path) -> None:
    """Three servers on two rails of 200 Mbit/s; the second rail of s1 has 40."""
    nvml.compile_mock(tmp_path)
    description = tmp_path / "machine.txt"
    description.write_text(nvml.h100(gpus=2).text())
    with lab.lab(tmp_path, [[200, 200], [200, 40], [200, 200]]) as servers:
        started = []
        for rank in range(3):
            env = nvml.environment(tmp_path / "libnvidia-ml.so.1", description, None)
            env |= {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "3"}
            options = ["--cluster", "--measure", "--interfaces", "e0,e1", "-o", "x.yaml", "--json"]
            argv = servers.inside(rank, [sys.executable, "-m", "collc", "probe", *options])
            started.append(
                subprocess.Popen(argv, env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )
        results = [process.communicate(timeout=200) for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], results
    out, err = results[0]
    slow = [line for line in err.splitlines() if "slow over" in line]
    assert len(slow) == 1, err
    assert slow[0].startswith("collc probe: s1: slow over e1: sends ")
    assert "and receives" in slow[0]
    found = json.loads(out)
    assert sorted(found["kinds"][0]["servers"]) == ["s0", "s1", "s2"]
    assert len(found["measured_network"]) == 12
    assert "# s1: slow over e1" in (tmp_path / "x.yaml").read_text()
