"""5,000 strangers at the listeners of a creation, of all kinds at once: no hang, no wrong sum, no failed creation.

`make flood` runs this. Machine `b` stops where it calls machine `a`, so the listeners of the id and of machine `a` are
open until all strangers have come.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from strangers import addresses, connect, hello
from support.libraries import library, shared_library
from support.ports import ports_of
from support.ranks import SUCCESS, Ranks
from test_open_ports import CALLS, WRONG_SECRET, right_calls
from test_replays import overheard

HERE = Path(__file__).parent
STRANGERS = 5000
OPEN_AT_ONCE = 800  # more than all seats; the oldest connections are closed beyond that
Door = str | tuple[str, int]


class Flood:
    """Connections to doors in turn, each with the next kind of words.

    Attributes:
        made: connections so far.
    """

    def __init__(self, seed: int) -> None:
        self.made = 0
        self._drawn = random.Random(seed)
        self._open: deque[socket.socket] = deque()

    def pour(self, count: int, doors: list[Door], kinds: list[Callable[[], bytes]]) -> None:
        """Makes `count` connections. A door whose queue is full gets the next one."""
        end = time.monotonic() + 300
        target = self.made + count
        for door in itertools.cycle(doors):
            assert time.monotonic() < end, f"{self.made} connections in 300 s"
            if self.made == target:
                return
            if (one := connect(door)) is None:
                continue
            self.made += 1
            with contextlib.suppress(OSError):
                one.send(self._drawn.choice(kinds)())
            self._open.append(one)
            if len(self._open) > OPEN_AT_ONCE:
                self._open.popleft().close()

    def close(self) -> None:
        for one in self._open:
            one.close()


@pytest.fixture
def flood(request: pytest.FixtureRequest) -> Iterator[Flood]:
    with contextlib.closing(Flood(request.param)) as made:
        yield made


def first_port(team: Ranks, rank: int, known: set[int]) -> Door:
    """Waits until a rank listens on a TCP port other than the known ones; returns that port."""
    end = time.monotonic() + 120
    while not (found := ports_of(team.processes[rank].pid) - known):
        assert time.monotonic() < end, "no port"
        time.sleep(0.01)
    return ("127.0.0.1", found.pop())


@pytest.mark.slow
@pytest.mark.parametrize("flood", range(3), indirect=True)
def test_five_thousand_strangers_of_all_kinds(flood: Flood) -> None:
    settings = {"COLLC_SOCKET_IFNAME": "lo", "COLLC_NET": "tcp:lo", "COLLC_TIMEOUT": "60"}
    own = {2: {"LD_PRELOAD": str(shared_library(HERE / "hold_up.c")), "HOLD_UP": "call:stop"}}
    team = Ranks(library("2+2"), 4, {**settings, "COLLC_BOOTSTRAP_TIMEOUT": "300"}, CALLS, hosts="aabb", own=own)
    try:
        unique = bytes.fromhex(str(team.ask(0, do="id")["id"]))
        secret, doors = unique[32:48], addresses(unique)
        replayed = overheard(team, unique, 4)
        for rank in (0, 2):
            team.tell(rank, do="init", nranks=4, id=unique.hex(), rank=rank)
        kinds: list[Callable[[], bytes]] = [
            lambda: b"",
            lambda: hello(unique),
            lambda: hello(unique)[:40],
            lambda: b"\xff" * 4096,
            lambda: replayed,
            lambda: replayed[:80],
            lambda: hello(unique, rank=3, nranks=4, secret=secret),  # right, and never answers its challenge
        ]
        flood.pour(STRANGERS // 2, doors, kinds)
        team.tell(3, do="init", nranks=4, id=unique.hex(), rank=3)
        known = {door[1] for door in doors if not isinstance(door, str)}
        flood.pour(STRANGERS // 2, [*doors, first_port(team, 0, known)], [*kinds, lambda: WRONG_SECRET])
        team.signal(2, signal.SIGCONT)
        assert [team.hear(rank)["result"] for rank in range(4)] == [SUCCESS] * 4
        right_calls(team, 0)
        assert flood.made == STRANGERS
    finally:
        team.close()
