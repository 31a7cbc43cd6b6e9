"""Crowds at the listener: ranks get through, and strangers take no more than their share of the process."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from pathlib import Path

import pytest
from strangers import addresses, hello
from support.crowd import crowd
from support.libraries import fake_nccl, library, shared_library
from support.ranks import INVALID_USAGE, SUCCESS, SYSTEM_ERROR, Ranks, ranks

HERE = Path(__file__).parent


def local_sockets(process: int) -> list[str]:
    """Returns the names of a process's listening local sockets, from a file that each user may read."""
    held = set()
    for one in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):
            held.add(os.readlink(one))
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return ["\0" + row[7][1:] for row in rows if len(row) == 8 and f"socket:[{row[6]}]" in held and row[7][0] == "@"]


def create(team: Ranks, unique: str) -> list[object]:
    nranks = len(team.processes)
    for rank in range(nranks):
        team.tell(rank, do="init", nranks=nranks, id=unique, rank=rank)
    return [team.hear(rank)["result"] for rank in range(nranks)]


@pytest.mark.parametrize("how", ["silent", "slow", "garbage", "wrong", "passing", "mixed"])
def test_ranks_get_through_a_crowd_without_end(how: str) -> None:
    with ranks(library("odd"), 3, COLLC_BOOTSTRAP_TIMEOUT="60", COLLC_SOCKET_IFNAME="lo") as team:
        unique = str(team.ask(0, do="id")["id"])
        for rank in range(3):
            team.ask(rank, do="open")  # it has started
        with crowd(unique, how, 0):
            time.sleep(0.3)
            assert create(team, unique) == [SUCCESS] * 3
            assert {answer["result"] for answer in team.all(do="call")} == {SUCCESS}


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(5))
@pytest.mark.parametrize("how", ["silent", "slow", "garbage", "wrong", "passing", "mixed"])
def test_ranks_get_through_five_thousand(how: str, turn: int) -> None:
    with ranks(library("dgx1v"), 8, COLLC_BOOTSTRAP_TIMEOUT="60", COLLC_SOCKET_IFNAME="lo") as team:
        unique = str(team.ask(0, do="id")["id"])
        for rank in range(8):
            team.ask(rank, do="open")
        with crowd(unique, how, 1000, 5, finished=turn % 2 == 1):
            start = time.monotonic()
            assert create(team, unique) == [SUCCESS] * 8
            print(f"{how}: {time.monotonic() - start:.2f} s")


def test_ranks_from_another_machine_get_through_a_crowd() -> None:
    settings = {
        "LD_PRELOAD": str(shared_library(HERE / "other_machine.c")),
        "COLLC_NCCL": str(fake_nccl(HERE / "fake_nccl.c")),
        "COLLC_BOOTSTRAP_TIMEOUT": "60",
    }
    with ranks(library("odd"), 3, COLLC_SOCKET_IFNAME="lo", **settings) as team:
        unique = str(team.ask(0, do="id")["id"])
        team.ask(2, do="environment", name="OTHER_MACHINE", value="1")
        with crowd(unique, "mixed", 0):
            assert create(team, unique) == [SUCCESS] * 3  # the real NCCL has it
        refused = team.ask(2, do="call", collective="broadcast")
        assert "this NCCL does not have it" in refused["text"]


def test_a_host_library_listens_on_its_machine_only() -> None:
    preload = str(shared_library(HERE / "other_machine.c"))
    with ranks(library("odd"), 2, NCCL_SOCKET_IFNAME="lo", LD_PRELOAD=preload) as team:
        unique = str(team.ask(0, do="id")["id"])
        assert [type(address) for address in addresses(bytes.fromhex(unique))] == [str]
        team.ask(1, do="environment", name="OTHER_MACHINE", value="1")
        answer = team.ask(1, do="init", nranks=2, id=unique, rank=1)
        assert answer["result"] == INVALID_USAGE
        assert "the id was made on another machine" in answer["text"]
        assert "COLLC_SOCKET_IFNAME" in answer["text"]


def test_who_has_shown_the_secret_stays() -> None:
    with ranks(library("odd"), 3, COLLC_BOOTSTRAP_TIMEOUT="60") as team:
        unique = str(team.ask(0, do="id")["id"])
        for rank in (0, 1):
            team.tell(rank, do="init", nranks=3, id=unique, rank=rank)
        with crowd(unique, "silent", 2000, finished=True):
            team.tell(2, do="init", nranks=3, id=unique, rank=2)
            assert [team.hear(rank)["result"] for rank in range(3)] == [SUCCESS] * 3


def test_strangers_take_a_bounded_number_of_descriptors() -> None:
    with ranks(library("odd"), 3, COLLC_SOCKET_IFNAME="lo") as team:
        unique = str(team.ask(0, do="id")["id"])
        before = int(team.ask(0, do="open")["descriptors"])
        with crowd(unique, "silent", 1000, finished=True):
            assert int(team.ask(0, do="open")["descriptors"]) - before <= 3 * 128


def test_a_bad_hello_ends_its_connection_alone() -> None:
    """A wrong secret, garbage, and an id that nobody knows; each gets a challenge of zeros, and the job goes on."""
    with ranks(library("odd"), 3, COLLC_SOCKET_IFNAME="lo") as team:
        unique = bytes.fromhex(str(team.ask(0, do="id")["id"]))
        team.tell(1, do="init", nranks=3, id=unique.hex(), rank=1)
        secret = unique[32:48]
        unknown = hello(unique[:80] + struct.pack("=I", 1 << 30) + unique[84:], secret=secret)
        for address in addresses(unique):
            for words in (hello(unique), bytes(len(unknown)), unknown, b"\xff" * len(unknown)):
                with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as stranger:
                    stranger.settimeout(60)
                    stranger.connect(address)
                    stranger.sendall(words)
                    assert stranger.recv(100) == bytes(48)
                    assert stranger.recv(100) == b""
        for rank in (0, 2):
            team.tell(rank, do="init", nranks=3, id=unique.hex(), rank=rank)
        assert [team.hear(rank)["result"] for rank in range(3)] == [SUCCESS] * 3


def test_where_descriptors_run_out_the_error_says_so() -> None:
    with ranks(library("odd"), 3, COLLC_BOOTSTRAP_TIMEOUT="60") as team:
        unique = str(team.ask(0, do="id")["id"])
        assert int(team.ask(0, do="exhaust", limit=64)["opened"]) > 20
        for rank in (1, 2):
            team.tell(rank, do="init", nranks=3, id=unique, rank=rank)
        answers = [team.hear(rank) for rank in (1, 2)]
        assert {answer["result"] for answer in answers} == {SYSTEM_ERROR}
        assert all("no descriptor left" in answer["text"] and "ulimit -n" in answer["text"] for answer in answers)
        # When there are some again, all is well.
        team.ask(0, do="exhaust", limit=0)
        assert {answer["result"] for answer in team.init()} == {SUCCESS}


def test_a_listener_without_descriptors_sleeps() -> None:
    with ranks(library("odd"), 1) as team:
        unique = bytes.fromhex(str(team.ask(0, do="id")["id"]))
        team.ask(0, do="exhaust", limit=64)
        strangers = []
        for _ in range(50):
            strangers.append(socket.socket(socket.AF_UNIX))
            strangers[-1].connect(addresses(unique)[0])
        spent: list[float] = []
        while len(spent) < 5 and not any(seconds < 0.3 for seconds in spent):  # on a busy machine all costs more
            before = float(team.ask(0, do="cpu")["seconds"])
            time.sleep(1)
            spent.append(float(team.ask(0, do="cpu")["seconds"]) - before)
        assert min(spent) < 0.3, spent
        for stranger in strangers:
            stranger.close()


def test_unused_ids_cost_neither_threads_nor_descriptors() -> None:
    with ranks(library("pair"), 2) as team:
        team.ask(0, do="id")
        before = team.ask(0, do="open")
        unique = str(team.ask(0, do="id", times=2000)["id"])
        assert team.ask(0, do="open") == before
        assert create(team, unique) == [SUCCESS] * 2
        assert {answer["result"] for answer in team.init()} == {SUCCESS}


def test_silent_strangers_do_not_hold_up_the_shared_memory() -> None:
    """The socket that hands it out is open while rank 1 sleeps; strangers of this user find its name as anyone can."""
    preload = str(shared_library(HERE / "hold_up.c"))
    with ranks(library("odd"), 3, LD_PRELOAD=preload, COLLC_BOOTSTRAP_TIMEOUT="9") as team:
        team.ask(1, do="environment", name="HOLD_UP", value="connect:2")
        unique = str(team.ask(0, do="id")["id"])
        for rank in range(3):
            team.tell(rank, do="init", nranks=3, id=unique, rank=rank)
        strangers: list[socket.socket] = []
        deadline = time.monotonic() + 60
        while not strangers and time.monotonic() < deadline:
            for name in local_sockets(team.processes[0].pid):
                if name.startswith("\0collc-"):
                    for _ in range(20):
                        strangers.append(socket.socket(socket.AF_UNIX))
                        strangers[-1].connect(name)
        assert strangers
        assert [team.hear(rank)["result"] for rank in range(3)] == [SUCCESS] * 3
        for stranger in strangers:
            stranger.close()
