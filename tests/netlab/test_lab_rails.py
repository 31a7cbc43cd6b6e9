"""Servers joined by several rails: shares by their rates, rates that change, rails that are lost and come back.

The default suite takes the short ones; `make netlab-rails` takes all and prints the rates beside plain sockets.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from support.libraries import library
from support.netlab import Lab, NoLab, lab
from support.plain_sockets import plain_rate
from support.ranks import REMOTE_ERROR, SUCCESS, Ranks

CALLS = Path(__file__).parent / "calls.py"
FLOATS = 1 << 18  # 1 MiB
RAILS = [(100, 50), (50, 100), (100, 100, 10), (100, 1)]


@contextmanager
def rails(*rates: int, settings: dict[str, str] | None = None) -> Iterator[tuple[Lab, Ranks]]:
    """Two servers of two ranks and a communicator over all rails of these rates."""
    net = "tcp:" + ",".join(f"e{rail}" for rail in range(len(rates)))
    environment = {"COLLC_SOCKET_IFNAME": "e0", "COLLC_NET": net, "COLLC_TIMEOUT": "60", **(settings or {})}
    try:
        with lab("ab", *rates) as made:
            team = Ranks(library("2+2"), 4, environment, CALLS, hosts="aabb", lab=made.name)
            try:
                answers = team.init()
                assert [answer["result"] for answer in answers] == [SUCCESS] * 4, answers
                yield made, team
            finally:
                team.close()
    except NoLab as error:
        pytest.skip(f"no network namespaces here: {error}")


@contextmanager
def joined(made: Lab, *settings: dict[str, str], inside: Sequence[str] = (), name: str = "2+2") -> Iterator[Ranks]:
    """A communicator of two ranks on each server of a lab, with variables for each server."""
    own = {rank: {"COLLC_NET": "", **settings[rank // 2]} for rank in range(4)}
    settled = {"COLLC_TIMEOUT": "60"}
    team = Ranks(library(name), 4, settled, CALLS, hosts="aabb", lab=made.name, own=own, inside=inside)
    try:
        answers = team.init()
        assert [answer["result"] for answer in answers] == [SUCCESS] * 4, answers
        yield team
    finally:
        team.close()


def call(made: Lab, team: Ranks, floats: int, times: int = 1) -> tuple[float, list[float]]:
    """Returns the seconds of an all_reduce, and each rail's share of the bytes that server a sent meanwhile."""
    numbers = range(1 + len(made.more))
    before = [made.sent(rail)["a"] for rail in numbers]
    answers = team.all(do="call", collective="all_reduce", count=floats, times=times, together=True)
    assert [answer["result"] for answer in answers] == [SUCCESS] * 4, answers
    sent = [made.sent(rail)["a"] - before[rail] for rail in numbers]
    return max(answer["seconds"] for answer in answers) / times, [one / sum(sent) for one in sent]


@contextmanager
def trouble(step: Callable[[int], None], every: float) -> Iterator[None]:
    """Calls `step` with 0, 1, ... again and again beside the test."""
    stop = threading.Event()

    def run() -> None:
        number = 0
        while not stop.wait(every):
            step(number)
            number += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def make_calls(team: Ranks, calls: int, seed: str = "1") -> float:
    """Seeded calls, every element compared; their seconds."""
    began = time.monotonic()
    answers = team.all(None, do="calls", seed=seed, parts=None, first=0, last=calls)
    assert all(answer["wrong"] == [] for answer in answers), f"again with seed {seed}: {answers}"
    assert {answer["calls"] for answer in answers} == {calls}
    return time.monotonic() - began


def test_rails_share_by_their_rates() -> None:
    """Repeats the call, because rates measured while other processes had the cores can be wrong for one call."""
    with rails(100, 50) as (made, team):
        found: list[list[float]] = []
        while not found or found[-1] != pytest.approx([2 / 3, 1 / 3], abs=0.05):
            assert len(found) < 6, found
            found.append(call(made, team, 8 * FLOATS)[1])


def test_streams_of_one_interface() -> None:
    """Three connections with each server, and results as before."""
    with rails(1000, settings={"COLLC_NET_STREAMS": "3"}) as (_, team):
        make_calls(team, 60)


def test_a_rail_is_lost_and_comes_back() -> None:
    """The switch loses what goes over the second rail; calls go on, and the rail carries its share afterwards."""
    with rails(100, 100) as (made, team):
        with trouble(lambda number: made.drop("b", 1, lost=number == 0), 1.0):
            for seed in range(3):
                make_calls(team, 60, str(seed))
                time.sleep(0.5)
        made.drop("b", 1, lost=False)
        deadline = time.monotonic() + 30
        while call(made, team, FLOATS)[1][1] < 0.4:
            assert time.monotonic() < deadline, "the rail does not come back"


NAMED = {"COLLC_SOCKET_IFNAME": "=e0"}


@pytest.mark.parametrize(
    ("here", "there", "used"),
    [
        pytest.param({"COLLC_SOCKET_IFNAME": "e"}, {"COLLC_SOCKET_IFNAME": "e0,e2"}, {0, 2}, id="lists"),
        pytest.param({**NAMED, "COLLC_NET": "e0,e1,e2"}, {**NAMED, "COLLC_NET": "e0,e1"}, {0, 1}, id="the least"),
        pytest.param({"COLLC_SOCKET_IFNAME": "^lo"}, {"COLLC_SOCKET_IFNAME": "e"}, {0}, id="nobody asked here"),
        pytest.param({"COLLC_SOCKET_IFNAME": "e1"}, {"COLLC_SOCKET_IFNAME": "e1,e0"}, {1}, id="one"),
    ],
)
def test_machines_agree_on_rails(here: dict[str, str], there: dict[str, str], used: set[int]) -> None:
    """By the networks of interfaces, or in the order of names; as many as all machines have."""
    try:
        with lab("ab", 400, 400, 400) as made, joined(made, here, there) as team:
            shares = call(made, team, 4 * FLOATS)[1]
            assert {rail for rail, share in enumerate(shares) if share > 0.05} == used, shares
    except NoLab as error:
        pytest.skip(f"no network namespaces here: {error}")


# Makes interface eN look like the interface of the RDMA device mlx5_N. `ip netns exec` gave the process private mounts.
RDMA = """
set -e
there=$(for one in /sys/class/net/*; do echo "$(basename "$one") $(readlink -f "$one")"; done)
mount -t tmpfs none /sys/class
mkdir /sys/class/net
echo "$there" | while read -r name place; do ln -s "$place" "/sys/class/net/$name"; done
for number in 0 1 2; do mkdir -p "/sys/class/infiniband/mlx5_$number/device/net/e$number"; done
exec "$@"
"""


@pytest.mark.parametrize(
    ("named", "used"),
    [
        pytest.param({"NCCL_IB_HCA": "mlx5_2,mlx5_1", "NCCL_SOCKET_IFNAME": "e0"}, {1, 2}, id="devices"),
        pytest.param({"NCCL_IB_HCA": "=mlx5_2:1"}, {2}, id="a port"),
        pytest.param({"NCCL_IB_HCA": "mlx5_7"}, {0}, id="none that is there"),
        pytest.param({"NCCL_IB_HCA": "mlx5_2", "COLLC_SOCKET_IFNAME": "e0"}, {0}, id="interfaces"),
    ],
)
def test_rails_of_the_rdma_devices_that_nccl_would_use(named: dict[str, str], used: set[int]) -> None:
    """Over plain sockets too, chunks go over the interfaces of the devices of NCCL_IB_HCA."""
    try:
        with (
            lab("ab", 400, 400, 400) as made,
            joined(made, named, named, inside=["sh", "-c", RDMA, "sh"]) as team,
        ):
            shares = call(made, team, 4 * FLOATS)[1]
            assert {rail for rail, share in enumerate(shares) if share > 0.05} == used, shares
    except NoLab as error:
        pytest.skip(f"no network namespaces here: {error}")


@pytest.mark.parametrize(
    ("named", "used"),
    [
        pytest.param({}, {1}, id="nobody asks"),
        pytest.param({"COLLC_NET": "e0"}, {0}, id="COLLC_NET"),
        pytest.param({"NCCL_SOCKET_IFNAME": "e0,e2"}, {0, 2}, id="a list"),
    ],
)
def test_rails_of_the_librarys_topology(
    named: dict[str, str], used: set[int], capfd: pytest.CaptureFixture[str]
) -> None:
    """The topology calls the servers' cards e1; the usual interface would be e0."""
    settings = {**named, "COLLC_DEBUG": "INFO"}
    try:
        with lab("ab", 400, 400, 400) as made, joined(made, settings, settings, name="2+2-e1") as team:
            shares = call(made, team, 4 * FLOATS)[1]
            assert {rail for rail, share in enumerate(shares) if share > 0.05} == used, shares
    except NoLab as error:
        pytest.skip(f"no network namespaces here: {error}")
    assert ("join machines, with 1 connections each: e1 (of the library's topology)" in capfd.readouterr().err) == (
        not named
    )


@pytest.mark.slow
def test_a_rail_that_is_dead_at_the_beginning() -> None:
    """The communicator is made without it, and uses it when it is there."""
    settings = {"COLLC_SOCKET_IFNAME": "e"}
    with lab("ab", 100, 100) as made:
        made.drop("b", 1)
        began = time.monotonic()
        with joined(made, settings, settings) as team:
            assert time.monotonic() - began < 15
            make_calls(team, 60)
            made.drop("b", 1, lost=False)
            deadline = time.monotonic() + 30
            while call(made, team, FLOATS)[1][1] < 0.4:
                assert time.monotonic() < deadline, "the rail does not come"


@pytest.mark.slow
@pytest.mark.parametrize("rates", RAILS, ids=str)
def test_rates_beside_plain_sockets(rates: tuple[int, ...]) -> None:
    """16 MiB over each set of rails, and plain sockets over all of them at once, in turn."""
    with rails(*rates) as (made, team):
        call(made, team, FLOATS)
        ours, plain = [], []
        for _ in range(3):
            seconds, shares = call(made, team, 16 * FLOATS, 2)
            ours.append(8 * 4 * 16 * FLOATS / seconds / 1e6)
            plain.append(plain_rate(made, 1.5))
        told = ", ".join(f"{share:.1%}" for share in shares)
        rate, sockets = sorted(ours)[1], sorted(plain)[1]
        ratio = rate / sockets
        print(f"rails {rates}: {rate:.1f} Mbit/s, plain sockets {sockets:.1f}: {ratio:.1%}; shares {told}")
        for share, one in zip(shares, rates, strict=True):
            assert share == pytest.approx(one / sum(rates), abs=0.05)
        assert ratio > 0.75, "far below what it is on a machine at rest"


@pytest.mark.slow
def test_rates_that_change() -> None:
    """100, 25 and 100 Mbit/s on the second rail while calls run; the rates of both calls after a change are printed."""
    with rails(100, 100) as (made, team):
        call(made, team, 16 * FLOATS)
        for rate in (25, 100, 25, 100, 25):
            made.shape(1, rate)
            found = []
            for _ in range(2):
                seconds, shares = call(made, team, 16 * FLOATS)
                found.append(8 * 4 * 16 * FLOATS / seconds / 1e6 / (100 + rate))
            print(f"100 + {rate}: {found[0]:.1%} and {found[1]:.1%} of the sum, the second rail has {shares[1]:.1%}")
            assert shares[1] == pytest.approx(rate / (100 + rate), abs=0.05)
            assert found[1] > 0.7, "far below what it is on a machine at rest"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cable", "drop", "flap"])
def test_no_call_is_wrong_while_rails_come_and_go(how: str) -> None:
    """Makes 2,000 calls and compares their time with the time over only the other rail."""
    with rails(100) as (_, team):
        alone = make_calls(team, 2000)

    def step(made: Lab, number: int) -> None:
        if how == "flap":
            made.cable("b", "up" if number % 2 else "down", 1)
        elif how == "cable" and number == 0:
            made.cable("b", "down", 1)
        elif number == 0:
            made.drop("b", 1)

    with rails(100, 100) as (made, team), trouble(lambda number: step(made, number), 1.5):
        seconds = make_calls(team, 2000)
    print(f"{how}: {seconds:.1f} s, {seconds / alone:.2f} of the {alone:.1f} s over the other rail alone")
    assert seconds < 3 * alone, "far above what it is on a machine at rest"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_chaos_on_rails(seed: int) -> None:
    """Rails get random rates and are lost at random, each of them, but never all at once."""
    seed += int(os.environ.get("RAILS_SEED", "0"))
    draw = Random(seed)
    with rails(100, 60, 30) as (made, team):

        def step(_: int) -> None:
            rail = draw.randrange(3)
            made.shape(rail, draw.choice([2, 10, 40, 100]))
            lost = draw.choice([None, 0, 1, 2])
            for other in range(3):
                made.drop("b", other, lost=other == lost)

        with trouble(step, 2.0):
            seconds = make_calls(team, 1000, str(seed))
        print(f"seed {seed}: 1000 calls right in {seconds:.1f} s")


@pytest.mark.slow
def test_the_last_rail_is_the_machine() -> None:
    """If no rail is left, the ranks get an error in time that names server, interface and peer."""
    with rails(100, 100, settings={"COLLC_NET_TIMEOUT": "3"}) as (made, team):
        for rank in range(4):
            team.tell(rank, do="call", count=1 << 22)
        time.sleep(0.3)
        for rail in (0, 1):
            made.drop("b", rail)
        began = time.monotonic()
        for rank in range(4):
            answer = team.hear(rank)
            assert answer["result"] == REMOTE_ERROR
            assert ("ranks 2, 3" if rank < 2 else "ranks 0, 1") in answer["text"]
            assert "10.79." in answer["text"]
            assert "(e0)" in answer["text"] or "(e1)" in answer["text"]
        assert time.monotonic() - began < 20
