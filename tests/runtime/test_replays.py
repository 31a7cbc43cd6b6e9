"""Hellos of ranks that somebody has overheard, and sends again from elsewhere."""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from strangers import addresses
from support.libraries import library, runtime_program
from support.ranks import SUCCESS, Ranks, ranks

from collc.resources import resource_dir

HERE = Path(__file__).parent
HELLO, ANSWER = 64, 32  # bytes


class Relay:
    """Listens on a local socket, passes one connection on to a listener, and keeps what the caller says.

    Attributes:
        said: by the caller, so far.
    """

    def __init__(self, to: str) -> None:
        self.name = secrets.token_bytes(16)
        self.said = b""
        self._to = to
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind("\0collc:" + self.name.hex())
        self._listening.listen(1)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with self._listening:
            caller = self._listening.accept()[0]
        with caller, socket.socket(socket.AF_UNIX) as there:
            there.connect(self._to)
            back = threading.Thread(target=self._pass, args=(there, caller, False), daemon=True)
            back.start()
            self._pass(caller, there, True)
            back.join()

    def _pass(self, source: socket.socket, target: socket.socket, overhears: bool) -> None:
        with contextlib.suppress(OSError):
            while words := source.recv(1 << 16):
                if overhears:
                    self.said += words
                target.sendall(words)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def wait_for(self, size: int) -> bytes:
        """The first bytes that the caller says."""
        end = time.monotonic() + 60
        while len(self.said) < size and time.monotonic() < end:
            time.sleep(0.01)
        return self.said[:size]


@contextlib.contextmanager
def caller(address: str | tuple[str, int], words: bytes) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as one:
        one.settimeout(60)
        one.connect(address)
        with contextlib.suppress(ConnectionError):
            one.sendall(words)
        yield one


def is_refused(one: socket.socket) -> bool:
    """Returns True if a caller gets at most a challenge, and then the end of its connection."""
    with contextlib.suppress(ConnectionError):
        heard = b""
        while more := one.recv(1 << 16):
            heard += more
        return len(heard) <= 48
    return True


def overheard(team: Ranks, unique: bytes, nranks: int) -> bytes:
    """Lets rank 1 join over a relay; what it has said to prove itself."""
    relay = Relay(str(addresses(unique)[0]))
    team.tell(1, do="init", nranks=nranks, id=(unique[:48] + relay.name + unique[64:]).hex(), rank=1)
    return relay.wait_for(HELLO + ANSWER)


@pytest.mark.parametrize("size", [HELLO, HELLO + ANSWER], ids=["hello", "hello and answer"])
def test_a_hello_that_is_sent_again_is_refused_and_the_job_goes_on(size: int) -> None:
    """Over the local socket and TCP, while the listener waits for other ranks."""
    with ranks(library("odd"), 3, COLLC_SOCKET_IFNAME="lo", COLLC_BOOTSTRAP_TIMEOUT="60") as team:
        unique = bytes.fromhex(str(team.ask(0, do="id")["id"]))
        words = overheard(team, unique, 3)[:size]
        doors = addresses(unique)
        assert [type(door) for door in doors] == [str, tuple]
        for door in doors:
            with caller(door, words) as one:
                if size == HELLO:
                    assert len(one.recv(100)) == 48
                    one.sendall(b"\5" * 32)
                assert is_refused(one)
        for rank in (0, 2):
            team.tell(rank, do="init", nranks=3, id=unique.hex(), rank=rank)
        assert [team.hear(rank)["result"] for rank in range(3)] == [SUCCESS] * 3
        assert {answer["result"] for answer in team.all(do="call")} == {SUCCESS}


def test_copies_of_a_hello_have_one_seat() -> None:
    """The first one is challenged; the others are closed at once, and nobody else loses a seat."""
    with ranks(library("odd"), 3, COLLC_SOCKET_IFNAME="lo", COLLC_BOOTSTRAP_TIMEOUT="60") as team:
        unique = bytes.fromhex(str(team.ask(0, do="id")["id"]))
        words = overheard(team, unique, 3)[:HELLO]
        with contextlib.ExitStack() as stack:
            door = addresses(unique)[1]
            first = stack.enter_context(caller(door, words))
            challenge = first.recv(100)
            assert len(challenge) == 48
            assert challenge != bytes(48)
            for _ in range(200):
                copy = stack.enter_context(caller(door, words))
                assert copy.recv(100) == bytes(48)
                assert is_refused(copy)
            for rank in (0, 2):
                team.tell(rank, do="init", nranks=3, id=unique.hex(), rank=rank)
            assert [team.hear(rank)["result"] for rank in range(3)] == [SUCCESS] * 3


def test_a_socket_that_passes_descriptors_on_gives_none_to_a_copy() -> None:
    """Shared memory, arenas and offers of buffers go over such sockets; all of them accept callers by the same code."""
    folder = resource_dir("templates") / "runtime"
    parts = {f"{room}_{file.stem}" for room in ("base", "bootstrap") for file in (folder / room).glob("*.cpp")}
    parts.remove("bootstrap_introduction")  # which needs the tables of a library
    program = runtime_program(HERE / "replayed_fetch.cpp", frozenset(parts))
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
