"""Sends and receives without a launcher: mailboxes of one process, of a forked child, and connections of strangers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from support.users import NOBODY

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")

from collc.torch import links  # noqa: E402
from collc.torch import mailbox as module  # noqa: E402
from collc.torch.listener import Listener  # noqa: E402
from collc.torch.mailbox import Mailbox  # noqa: E402
from collc.torch.memory import read_memory  # noqa: E402
from collc.torch.wire import Header, Kind  # noqa: E402

SMALL, LARGE = 100, 500_000  # elements: one travels at once, one is offered
SECONDS = 60.0

Make = Callable[[int], list[Mailbox]]


@pytest.fixture
def make() -> Iterator[Make]:
    with ExitStack() as stack:

        def mailboxes(size: int) -> list[Mailbox]:
            listeners = [Listener() for _ in range(size)]
            addresses = [listener.address for listener in listeners]
            made = [Mailbox(listener, addresses, rank) for rank, listener in enumerate(listeners)]
            for one in made:
                stack.callback(one.close)
            return made

        yield mailboxes


def exchange(sender: Mailbox, receiver: Mailbox, count: int, tag: int = 0) -> None:
    got = torch.zeros(count)
    sent = sender.send([torch.arange(float(count))], 1, tag, SECONDS)
    receiver.receive([got], 0, tag, SECONDS).wait()
    sent.wait()
    assert (got == torch.arange(float(count))).all()


@pytest.mark.parametrize("count", [0, 1, SMALL, LARGE])
def test_what_is_sent_arrives(make: Make, count: int) -> None:
    sender, receiver = make(2)
    exchange(sender, receiver, count)


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_nothing_that_was_sent_after_a_lost_tensor_takes_its_place(make: Make, count: int) -> None:
    sender, receiver = make(2)
    works = [sender.send([torch.full((count,), float(k))], 1, tag, SECONDS) for k in range(3) for tag in (0, 7)]
    until = time.monotonic() + SECONDS
    while sum(map(len, receiver._arrived.values())) < len(works) and time.monotonic() < until:
        receiver.receive([torch.zeros(1)], 0, 99, 0.01)
        time.sleep(0.01)
    with pytest.raises(RuntimeError, match=f"rank 0 sent {4 * count} bytes") as first:
        receiver.receive([torch.zeros(count + 1)], 0, 0, SECONDS).wait()
    for tag in (0, 7):
        with pytest.raises(RuntimeError) as later:
            receiver.receive([torch.zeros(count)], 0, tag, SECONDS).wait()
        assert str(later.value) == str(first.value)
    if count == LARGE:
        for work in works:
            with pytest.raises(RuntimeError, match="rank 0 sent"):
                work.wait()


def test_where_memory_cannot_be_read_the_sender_sends_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def refuse(process: int, address: int, into: int, count: int) -> bool:
        asked.append(count)
        return False

    monkeypatch.setattr(module, "read_memory", refuse)
    sender, receiver = make(2)
    for count in (LARGE, SMALL, LARGE, 4 * LARGE):
        exchange(sender, receiver, count)
    assert asked == [4 * LARGE]  # not tried again


def test_a_read_that_ends_halfway_is_sent_whole(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    read = read_memory

    def half(process: int, address: int, into: int, count: int) -> bool:
        return read(process, address, into, count // 2) and False

    monkeypatch.setattr(module, "read_memory", half)
    sender, receiver = make(2)
    exchange(sender, receiver, LARGE)


def test_a_forked_child_is_refused_and_changes_nothing(make: Make) -> None:
    sender, receiver = make(2)
    exchange(sender, receiver, LARGE)
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            sender.send([torch.zeros(1)], 1, 0, SECONDS)
            word = b"sent"
        except RuntimeError as error:
            word = str(error).encode()
        os.write(told, word)
        signal.pause()  # lives on with its inherited descriptors
        os._exit(0)
    try:
        assert b"belongs to the parent of this forked process" in os.read(ready, 1000)
        exchange(sender, receiver, LARGE)
        waiting = receiver.receive([torch.zeros(1)], 0, 0, SECONDS)
        sender.close()
        with pytest.raises(RuntimeError, match="rank 0 has left the group"):
            waiting.wait()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(told)


def connect(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(SECONDS)
    sock.connect("\0" + address.split()[0])
    return sock


HELLO = Header(Kind.HELLO, 0, length=32).pack()
STRANGERS = {
    "garbage": os.urandom(4096),
    "wrong secret": HELLO + bytes(32),
    "no hello": Header(Kind.EAGER, 0, 0, 4).pack() + bytes(4),
    "death of the group": Header(Kind.BROKEN, length=4).pack() + b"gone",
    "unknown kind": struct.pack("<B39x", 77),
    "long hello": Header(Kind.HELLO, 0, length=1 << 40).pack(),
}


def test_strangers_are_shown_the_door(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_STRANGER_SECONDS", 2.0)
    first, second = make(2)
    address = second._links._addresses[1]
    silent = [connect(address) for _ in range(20)]
    for name, words in STRANGERS.items():
        with connect(address) as stranger:
            stranger.sendall(words)
            assert stranger.recv(1) == b"", name
        exchange(first, second, LARGE)
    for sock in silent:  # who says nothing is not kept either
        assert sock.recv(1) == b""
        sock.close()
    exchange(first, second, SMALL)


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can become another user")
def test_a_hello_that_another_user_sends_again_is_refused(make: Make) -> None:
    """Even with the right secret; the words of a member are refused behind it too."""
    first, second = make(2)
    exchange(first, second, SMALL)
    address = second._links._addresses[1]
    words = HELLO + bytes.fromhex(address.split()[1]) + Header(Kind.BROKEN, length=4).pack() + b"gone"
    if (child := os.fork()) == 0:
        os.setuid(NOBODY)
        with contextlib.suppress(OSError), connect(address) as again:
            with contextlib.suppress(OSError):
                again.sendall(words)
            with contextlib.suppress(ConnectionError):
                os._exit(0 if again.recv(1) == b"" else 2)
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    exchange(first, second, LARGE)


@pytest.mark.parametrize("kind", [Kind.DATA, Kind.PULL, Kind.DONE, Kind.CREDIT, Kind.REFUSE])
def test_a_member_that_speaks_out_of_turn_is_told_as_gone(kind: Kind) -> None:
    """Rank 0 shows the secret and then breaks the protocol: rank 1 reports it in finite time, and lives."""
    listeners = [Listener(), Listener()]
    addresses = [listener.address for listener in listeners]
    second = Mailbox(listeners[1], addresses, 1)
    try:
        waiting = second.receive([torch.zeros(SMALL)], 0, 0, SECONDS)
        with connect(addresses[1]) as member:
            member.sendall(HELLO + bytes.fromhex(addresses[1].split()[1]) + Header(kind, 5, 0, 3).pack() + b"abc")
            with pytest.raises(RuntimeError, match="rank 0 is gone"):
                waiting.wait()
    finally:
        second.close()
        listeners[0].sock.close()


def test_two_threads_send_to_each_other_at_once(make: Make) -> None:
    first, second = make(2)
    failures: list[BaseException] = []

    def run(mine: Mailbox, other: int) -> None:
        try:
            for k in range(30):
                got = torch.zeros(LARGE if k % 3 == 0 else SMALL)
                sent = mine.send([torch.full_like(got, float(k))], other, 0, SECONDS)
                mine.receive([got], other, 0, SECONDS).wait()
                sent.wait()
                assert (got == k).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=each) for each in ((first, 1), (second, 0))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
