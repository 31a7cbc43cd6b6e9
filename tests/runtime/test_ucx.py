"""Communicators over the engine `ucx`, on the loopback by UCX's TCP; and that without the switch UCX gets no TCP.

On a machine without RDMA NICs, an engine that asks UCX only for RDMA does not start. There `cards_by_memory.c` makes
shared memory stand for the cards: the communicator is made, and the sockets of its processes show what UCX has opened.

`make netlab` runs the tests of several machines with this engine too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.failures import kill_amid_a_call
from support.libraries import client, library, run_client, shared_library
from support.ports import ports_in_the_end
from support.ranks import INVALID_USAGE, SUCCESS, SYSTEM_ERROR, Ranks
from support.ucx import with_cards

from collc.network import ucx as module
from collc.network.ucx import find_ucx, wheel_setting

HERE = Path(__file__).parent
CALLS = HERE.parent / "netlab" / "calls.py"
LOOPBACK = {"COLLC_SOCKET_IFNAME": "lo"}
UNSAFE = {"COLLC_NET": "ucx:lo", "COLLC_UCX_UNSAFE_TCP": "1"}
SAFE = {"COLLC_NET": "ucx:lo", "COLLC_UCX_UNSAFE_TCP": ""}


@pytest.fixture(autouse=True)
def ucx_is_here() -> None:
    if find_ucx(os.environ) is None:
        pytest.skip("no UCX here (Debian: libucx0)")


@contextmanager
def machines(
    hosts: str, environment: Mapping[str, str], own: Mapping[int, Mapping[str, str]] | None = None
) -> Iterator[Ranks]:
    team = Ranks(library("2+2"), len(hosts), {**LOOPBACK, **environment}, hosts=hosts, own=own)
    try:
        yield team
    finally:
        team.close()


def test_groups_transfers_and_scaled_sums() -> None:
    settings = {**LOOPBACK, "RANK_HOSTS": "aabb", **UNSAFE}
    run_client([client(HERE / "api.c", "2+2"), "processes", "4"], settings=settings)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "hosts"), [("2+2", "abba"), ("3+5", "aaabbbbb"), ("2+2+2+2", "aabbccdd")])
def test_every_collective_type_operation_and_root(name: str, hosts: str) -> None:
    settings = {**LOOPBACK, "RANK_HOSTS": hosts, **UNSAFE}
    run_client([client(HERE / "client.c", name), "processes", str(len(hosts))], settings=settings, timeout=3000)


@pytest.mark.parametrize("victim", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_killed_rank_is_named_by_all(victim: int) -> None:
    """Rank 2 has the courier of its machine: UCX loses its peer, and the end of the TCP connection tells why."""
    with machines("aabb", UNSAFE) as team:
        assert [answer["result"] for answer in team.init()] == [SUCCESS] * 4
        kill_amid_a_call(team, victim, 100000)


@pytest.mark.parametrize(
    ("settings", "who", "ports"),
    [
        (SAFE, {"libcollc"}, [0, 0, 0, 0]),
        # So the case above would notice, wherever a port of UCX came from.
        ({**SAFE, "CARDS_AND": "tcp", "UCX_NET_DEVICES": "lo"}, {"libcollc", "libucs"}, [1, 0, 1, 0]),
        (UNSAFE, {"libcollc", "libucs"}, [1, 0, 1, 0]),
    ],
    ids=["without the switch", "a planted port", "with the switch"],
)
def test_without_the_switch_no_port_of_ucx_is_open(
    settings: Mapping[str, str], who: set[str], ports: list[int], tmp_path: Path
) -> None:
    """Checks the sockets of the processes during calls, and the callers of listen() since their start.

    The same UCX has TCP, as the other cases show.
    """
    log = tmp_path / "listeners"
    environment = {
        **LOOPBACK,
        **settings,
        **with_cards(),
        "LD_PRELOAD": str(shared_library(HERE / "who_listens.c")),
        "LISTENERS": str(log),
        "COLLC_TIMEOUT": "60",
    }
    team = Ranks(library("2+2"), 4, environment, CALLS, hosts="aabb")
    try:
        assert [answer["result"] for answer in team.init()] == [SUCCESS] * 4
        ports_in_the_end(team, ports)
        answers = team.all(None, do="calls", seed="1", parts=None, first=0, last=20)
        assert [answer["wrong"] for answer in answers] == [[]] * 4
        assert {answer["calls"] for answer in answers} == {20}
        ports_in_the_end(team, ports)
    finally:
        team.close()
    called = {re.split(r"[-.]", Path(line).name)[0] for line in log.read_text().splitlines()}
    assert called == who, called


@pytest.mark.skipif(Path("/sys/class/infiniband").exists(), reason="this machine has RDMA devices")
def test_a_machine_without_rdma_says_so() -> None:
    with machines("aabb", SAFE) as team:
        answers = team.init()
    said = [answer["text"] for answer in answers if answer["result"] == SYSTEM_ERROR]
    assert any("has no RDMA device (/sys/class/infiniband); COLLC_NET=tcp needs none" in text for text in said), answers
    assert SUCCESS not in [answer["result"] for answer in answers]


@pytest.mark.parametrize(
    ("path", "why"), [("/nowhere/libucp.so.0", "no UCX was found (/nowhere/libucp.so.0"), ("libc.so.6", "is no UCX")]
)
def test_no_ucx_is_said(path: str, why: str) -> None:
    with machines("aabb", {**UNSAFE, "COLLC_UCX": path}) as team:
        answers = team.init()
    said = [answer["text"] for answer in answers if answer["result"] == SYSTEM_ERROR]
    assert any("engine ucx: " in text and why in text for text in said), answers
    assert SUCCESS not in [answer["result"] for answer in answers]


def test_machines_with_different_engines() -> None:
    with machines("aabb", {}, {2: UNSAFE, 3: UNSAFE}) as team:
        answers = team.init()
    assert SUCCESS not in [answer["result"] for answer in answers]
    said = [answer["text"] for answer in answers if answer["result"] == INVALID_USAGE]
    assert any("joins over the engine tcp" in text and "over ucx: set COLLC_NET alike" in text for text in said), (
        answers
    )


def test_the_extra_is_used_where_the_system_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "libucx"
    (wheel / "lib").mkdir(parents=True)
    (wheel / "__init__.py").touch()
    (wheel / "lib/libucp.so.0").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = {"COLLC_NET": "ucx:eth0"}
    monkeypatch.setattr(module, "find_ucx", lambda _environment: None)
    assert wheel_setting(asked) == {"COLLC_UCX": str(wheel / "lib/libucp.so.0")}
    assert wheel_setting({"COLLC_NET": "eth0"}) == wheel_setting({**asked, "COLLC_UCX": "/a.so"}) == {}
    monkeypatch.setattr(module, "find_ucx", find_ucx)
    assert wheel_setting(asked) == {}
