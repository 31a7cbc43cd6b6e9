"""Rails that never connect, and rails behind routers: the interfaces that carry the calls, and the lines in the log.

The usual interface of every server is e0.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from support.libraries import library
from support.netlab import Lab, NoLab, lab
from support.ranks import REMOTE_ERROR, SUCCESS, Ranks
from test_lab_rails import CALLS, FLOATS, RDMA, call, joined, make_calls, trouble

WARN = {"COLLC_DEBUG": "WARN"}


@contextmanager
def servers(letters: str, *rates: int) -> Iterator[Lab]:
    try:
        with lab(letters, *rates) as made:
            yield made
    except NoLab as error:
        pytest.skip(f"no network namespaces here: {error}")


@contextmanager
def team_of(made: Lab, name: str, environment: dict[str, str]) -> Iterator[Ranks]:
    """A rank on each server."""
    hosts = made.servers
    settled = {"COLLC_NET": "", "COLLC_TIMEOUT": "60", **environment}
    team = Ranks(library(name), len(hosts), settled, CALLS, hosts=hosts, lab=made.name)
    try:
        answers = team.init()
        assert [answer["result"] for answer in answers] == [SUCCESS] * len(hosts), answers
        yield team
    finally:
        team.close()


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


def wait_for_share(made: Lab, team: Ranks, rail: int, share: float) -> None:
    """Repeats the call, because rates measured while other processes had the cores can be wrong for one call."""
    deadline = time.monotonic() + 60
    while (found := call(made, team, 4 * FLOATS)[1])[rail] < share:
        assert time.monotonic() < deadline, found


def test_cards_that_do_not_reach_each_other_leave_calls_to_the_usual_interface(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """They share a network by their addresses, and a switch keeps them apart; when it does no more they are used."""
    with servers("ab", 200, 200) as made:
        made.drop("b", 1)
        with joined(made, WARN, WARN, name="2+2-e1") as team:
            make_calls(team, 60)
            assert call(made, team, FLOATS)[1][0] > 0.95
            told = capfd.readouterr().err
            for here, there in ("ab", "ba"):
                line = f"rail e1 to node-{there} at 10.79.1.{made.servers.index(there) + 1} port "
                (found,) = [one for one in told.splitlines() if line in one and "does not come" in one]
                assert f"(e1) from node-{here} at 10.79.1." in found
                assert f"the usual interface e0 to node-{there} at 10.79.0." in found
            made.drop("b", 1, lost=False)
            wait_for_share(made, team, 1, 0.3)


USED = "the usual interface e0 to node-{} at 10.79.0."


def used_to(told: str, server: str) -> list[str]:
    """Returns the other server's lines about its use of the spare connection to this server."""
    begin = USED.format(server)
    return [line for line in told.splitlines() if begin in line and "is used: nothing has come" in line]


def amid_a_call(team: Ranks, trouble: Callable[[], None]) -> float:
    """Seconds of a call that would take one, with `trouble` in it."""
    began = time.monotonic()
    for rank in range(4):
        team.tell(rank, do="call", count=1 << 22)
    time.sleep(0.3)
    trouble()
    answers = [team.hear(rank) for rank in range(4)]
    assert [answer["result"] for answer in answers] == [SUCCESS] * 4, answers
    return time.monotonic() - began


def test_calls_go_on_over_the_usual_interface_once_all_rails_are_lost(capfd: pytest.CaptureFixture[str]) -> None:
    """The log reports the use of the usual interface. A rail that comes back is used again."""
    with servers("ab", 200, 200) as made, joined(made, WARN, WARN, name="2+2-e1") as team:
        make_calls(team, 20)
        before = made.sent(0)["a"]
        assert amid_a_call(team, lambda: made.drop("b", 1)) < 15
        make_calls(team, 20)
        assert made.sent(0)["a"] - before > 1 << 20
        told = capfd.readouterr().err
        assert len(used_to(told, "a")) == len(used_to(told, "b")) == 1
        made.drop("b", 1, lost=False)
        wait_for_share(made, team, 1, 0.3)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cables", "one after the other", "again and again"])
def test_several_rails_that_are_all_lost(how: str) -> None:
    """Every element of every call is compared."""
    named = {"NCCL_IB_HCA": "mlx5_1,mlx5_2", "NCCL_SOCKET_IFNAME": "e0", "COLLC_NET_TIMEOUT": "20"}
    with (
        servers("ab", 200, 200, 200) as made,
        joined(made, named, named, inside=["sh", "-c", RDMA, "sh"]) as team,
    ):
        make_calls(team, 60)

        def step(number: int) -> None:
            for rail in (1, 2):
                if how == "cables":
                    made.cable("b", "up" if number > 4 else "down", rail)
                elif how == "one after the other":
                    made.drop("b", rail, lost=number > rail)
                else:
                    made.drop("b", rail, lost=number // 4 % 2 == 0)

        before = made.sent(0)["a"]
        with trouble(step, 1.5):
            for seed in range(4):
                make_calls(team, 100, str(seed))
                time.sleep(2)
        assert made.sent(0)["a"] - before > 1 << 16


@pytest.mark.slow
def test_the_spare_is_lost_as_well() -> None:
    """The ranks get an error in time that names server, interface and peer."""
    patience = {"COLLC_NET_TIMEOUT": "6"}
    with servers("ab", 200, 200) as made, joined(made, patience, patience, name="2+2-e1") as team:
        amid_a_call(team, lambda: made.drop("b", 1))
        make_calls(team, 20)
        made.drop("b", 0)
        all_are_told(team, "10.79.0.", "(e0)")


@pytest.mark.slow
def test_a_stopped_process_keeps_its_rails(capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing comes over any of them, so the spare is called; it is not used."""
    told = {"COLLC_DEBUG": "INFO"}
    with servers("ab", 200, 200) as made, joined(made, told, told, name="2+2-e1") as team:

        def pause(victim: int) -> None:
            team.signal(victim, signal.SIGSTOP)
            time.sleep(6)
            team.signal(victim, signal.SIGCONT)

        for victim in (0, 2, 0, 2):
            before = made.sent(0)["a"]
            amid_a_call(team, partial(pause, victim))
            make_calls(team, 20)
            assert made.sent(0)["a"] - before < 1 << 16
        said = capfd.readouterr().err
        assert "is lost" not in said
        assert "is used" not in said


def all_are_told(team: Ranks, *parts: str) -> None:
    for rank in range(4):
        team.tell(rank, do="call", count=1 << 22)
    for rank in range(4):
        answer = team.hear(rank)
        here, there = ("ab", ("ranks 2, 3", 2)) if rank < 2 else ("ba", ("ranks 0, 1", 1))
        assert answer["result"] == REMOTE_ERROR
        for part in (there[0], f"node-{here[1]}", "nothing came", *parts):
            assert part in answer["text"], answer["text"]


@pytest.mark.slow
def test_interfaces_that_are_named_have_no_spare() -> None:
    """If no rail is left, ranks get an error with server, interface and peer in time, even if another works."""
    with servers("ab", 200, 200) as made:
        patience = {"COLLC_NET_TIMEOUT": "3", "COLLC_NET": "e1"}
        with joined(made, patience, patience, name="2+2-e1") as team:
            make_calls(team, 60)
            before = made.sent(0)
            made.drop("b", 1)
            began = time.monotonic()
            all_are_told(team, "10.79.1.", "(e1)")
            assert time.monotonic() - began < 15
            assert all(made.sent(0)[server] - before[server] < 1 << 16 for server in "ab")


def test_one_server_of_three_is_met_on_the_usual_interface() -> None:
    """The card of the third one is out of reach; the others use theirs."""
    with servers("abc", 200, 200) as made:
        made.drop("c", 1)
        with team_of(made, "1+1+1-e1", {}) as team:
            before = [made.sent(rail) for rail in (0, 1)]
            make_calls(team, 60)
            sent = [{s: made.sent(rail)[s] - before[rail][s] for s in "abc"} for rail in (0, 1)]
            assert all(sent[0][server] > 1 << 16 for server in "abc"), sent
            assert all(sent[1][server] > 1 << 16 for server in "ab"), sent
            assert sent[1]["c"] < 1 << 16, sent


@pytest.mark.slow
def test_one_server_of_three_loses_its_rail() -> None:
    """The others keep theirs between them, and meet that one on the usual interface."""
    with servers("abc", 200, 200) as made, team_of(made, "1+1+1-e1", {}) as team:
        make_calls(team, 60)
        made.drop("c", 1)
        make_calls(team, 60)
        before = [made.sent(rail) for rail in (0, 1)]
        make_calls(team, 60, "2")
        sent = [{s: made.sent(rail)[s] - before[rail][s] for s in "abc"} for rail in (0, 1)]
        assert all(sent[0][server] > 1 << 16 for server in "abc"), sent
        assert all(sent[1][server] > 1 << 16 for server in "ab"), sent


def test_an_interface_on_which_nobody_can_listen_is_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    """As long as it is looked for others with its address, an interface has none that can be used."""
    settings = {**WARN, "COLLC_SOCKET_IFNAME": "e"}
    with servers("ab", 200, 200) as made:
        space = [*made.inside("b")]
        if subprocess.run([*space, "sysctl", "-qw", "net.ipv6.conf.e1.dad_transmits=600"], check=False).returncode != 0:
            pytest.skip("no IPv6 here")
        run("ip", "-n", f"{made.name}-b", "addr", "flush", "dev", "e1")
        run("ip", "-n", f"{made.name}-b", "-6", "addr", "add", "fd79::2/64", "dev", "e1")
        with joined(made, settings, settings) as team:
            make_calls(team, 60)
            assert call(made, team, FLOATS)[1][0] > 0.95
    assert "cannot listen on fd79::2" in capfd.readouterr().err


def route(made: Lab) -> None:
    """Puts each server's interface into a separate network, and makes the switch a router between them.

    Packets leave by the interface whose address they are from, as in fabrics whose rails do not meet.
    """
    router = f"{made.name}-sw"
    run("ip", "netns", "exec", router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
    for rail in range(1 + len(made.more)):
        for number, server in enumerate(made.servers, 1):
            space, port, own = f"{made.name}-{server}", f"p{server}{rail}", f"10.{80 + rail}.{number}."
            run("ip", "-n", router, "link", "set", port, "nomaster")
            run("ip", "-n", router, "addr", "add", f"{own}0/31", "dev", port)
            run("ip", "-n", space, "addr", "flush", "dev", f"e{rail}")
            run("ip", "-n", space, "addr", "add", f"{own}1/31", "dev", f"e{rail}")
            table = str(100 + rail)
            run("ip", "-n", space, "route", "add", "default", "via", f"{own}0", "dev", f"e{rail}", "table", table)
            run("ip", "-n", space, "rule", "add", "from", f"{own}1", "table", table)
            if rail == 0:
                run("ip", "-n", space, "route", "add", "default", "via", f"{own}0", "dev", "e0")


@pytest.mark.parametrize(
    ("named", "library_name", "used"),
    [
        pytest.param({}, "2+2", {0}, id="nobody asks"),
        pytest.param({}, "2+2-e1", {1}, id="the topology"),
        pytest.param({"NCCL_SOCKET_IFNAME": "e"}, "2+2", {0, 1, 2}, id="a list"),
        pytest.param({"NCCL_IB_HCA": "mlx5_2,mlx5_1"}, "2+2", {1, 2}, id="devices"),
        pytest.param({"COLLC_NET": "e0,e2"}, "2+2", {0, 2}, id="COLLC_NET"),
    ],
)
def test_rails_that_routers_join(named: dict[str, str], library_name: str, used: set[int]) -> None:
    with servers("ab", 400, 400, 400) as made:
        route(made)
        with joined(made, named, named, inside=["sh", "-c", RDMA, "sh"], name=library_name) as team:
            shares = call(made, team, 4 * FLOATS)[1]
            assert {rail for rail, share in enumerate(shares) if share > 0.05} == used, shares
            make_calls(team, 60)


@pytest.mark.parametrize("how", ["down", "not there"])
def test_a_device_that_is_down_or_not_there_leaves_the_others_their_places(how: str) -> None:
    """The second device here meets the second one there, where the first one there is down, or named and missing."""
    here = {"NCCL_IB_HCA": "mlx5_1,mlx5_2"}
    there = {"NCCL_IB_HCA": "mlx5_7,mlx5_2"} if how == "not there" else here
    with servers("ab", 400, 400, 400) as made:
        route(made)
        if how == "down":
            made.cable("b", "down", 1)
        with joined(made, here, there, inside=["sh", "-c", RDMA, "sh"]) as team:
            shares = call(made, team, 4 * FLOATS)[1]
            assert {rail for rail, share in enumerate(shares) if share > 0.05} == {2}, shares


@pytest.mark.parametrize(
    ("named", "library_name", "used"),
    [
        pytest.param({}, "2+2-e1", {0}, id="the topology"),
        pytest.param({"NCCL_SOCKET_IFNAME": "e"}, "2+2", {0, 2}, id="a list"),
    ],
)
def test_rails_that_routers_do_not_join_are_left_out(
    named: dict[str, str], library_name: str, used: set[int], capfd: pytest.CaptureFixture[str]
) -> None:
    """The second rail has no route between the servers until the test removes the block."""
    settings = {**WARN, **named}
    with servers("ab", 200, 200, 200) as made:
        route(made)
        way = ("blackhole", "10.81.2.1/32")
        run("ip", "-n", f"{made.name}-sw", "route", "add", *way)
        with joined(made, settings, settings, name=library_name) as team:
            make_calls(team, 60)
            shares = call(made, team, 4 * FLOATS)[1]
            assert {rail for rail, share in enumerate(shares) if share > 0.05} == used, shares
            assert "rail e1 to node-a at 10.81.1.1 port " in capfd.readouterr().err
            run("ip", "-n", f"{made.name}-sw", "route", "del", *way)
            wait_for_share(made, team, 1, 0.2)


@pytest.mark.parametrize(("letters", "controls"), [("abc", [{"cubic"}, {"reno"}]), ("ab", [{"bbr"}])])
def test_rails_between_more_than_two_servers_are_not_left_to_bbr(letters: str, controls: list[set[str]]) -> None:
    """Nor those that come back."""
    with servers(letters, 400, 400) as made:
        for server in letters:
            choose = ["sysctl", "-qw", "net.ipv4.tcp_congestion_control=bbr"]
            if subprocess.run([*made.inside(server), *choose], capture_output=True, check=False).returncode != 0:
                pytest.skip("this kernel has no BBR")

        def used_by(server: str, rail: int) -> list[str]:
            """The congestion control of each connection of a rail."""
            address = f"10.79.{rail}.{made.servers.index(server) + 1}"
            found = run(*made.inside(server), "ss", "-tinH", "state", "established", "src", address)
            return [line.split()[0] for line in found.splitlines() if line.startswith("\t")]

        def wait_for_connections(rail: int) -> None:
            """Connections to the listener of the id close a second after the creation. A connection that comes back has
            BBR until its handshake is over."""
            deadline = time.monotonic() + 60
            while True:
                used = [used_by(server, rail) for server in letters]
                if all(len(one) == len(letters) - 1 and set(one) in controls for one in used):
                    return
                assert time.monotonic() < deadline, used
                time.sleep(0.1)

        name = "1+1" if len(letters) == 2 else "1+1+1-e1"
        with team_of(made, name, {"COLLC_SOCKET_IFNAME": "e0,e1"}) as team:
            wait_for_connections(0)
            wait_for_connections(1)
            made.cable("b", "down", 1)
            deadline = time.monotonic() + 60
            while len(used_by("a", 1)) == len(letters) - 1:
                assert time.monotonic() < deadline, "the rail is not lost"
                answers = team.all(do="call", collective="all_reduce", count=1000)
                assert [answer["result"] for answer in answers] == [SUCCESS] * len(letters)
            made.cable("b", "up", 1)
            wait_for_connections(1)
            make_calls(team, 60)
