"""The interface that other machines are met on: one rule, in Python and in the runtime."""

from __future__ import annotations

import re

import pytest
from support.libraries import library
from support.ranks import Ranks

from collc.errors import CollcError, RunError, UsageError
from collc.network.interfaces import Interface, choose, choose_rails, interfaces

LO = Interface("lo", "127.0.0.1", True, True)
LO6 = Interface("lo", "::1", True, True)
DOCKER = Interface("docker0", "172.17.0.1", True, False)
DOWN = Interface("eth9", "10.9.0.1", False, False)
ETH6 = Interface("eth0", "fe80::1%2", True, False)
ETH = Interface("eth0", "10.0.0.1", True, False)
ETH1 = Interface("eth1", "10.1.0.1", True, False)
ALL = [LO, DOWN, DOCKER, ETH6, ETH1, ETH, LO6]


@pytest.mark.parametrize(
    ("environment", "there", "chosen"),
    [
        ({}, ALL, ETH1),
        ({}, [LO, DOCKER, ETH6], ETH6),
        ({}, [LO6, LO, DOCKER], DOCKER),
        ({}, [LO6, LO], LO),
        ({}, [DOWN], None),
        ({"NCCL_SOCKET_IFNAME": "eth0"}, ALL, ETH),
        ({"NCCL_SOCKET_IFNAME": "=eth0"}, ALL, ETH),
        ({"NCCL_SOCKET_IFNAME": "^eth1"}, ALL, ETH),
        ({"NCCL_SOCKET_IFNAME": "ib,eth0"}, ALL, ETH),
        ({"NCCL_SOCKET_IFNAME": "eth,docker"}, ALL, DOCKER),
        ({"NCCL_SOCKET_IFNAME": "=ib0,eth0,"}, ALL, ETH),
        ({"NCCL_SOCKET_IFNAME": "^docker,eth1"}, ALL, ETH),
        ({"NCCL_SOCKET_IFNAME": "^eth"}, ALL, DOCKER),
        ({"NCCL_SOCKET_IFNAME": "^=eth1,docker0"}, ALL, ETH),
        ({"NCCL_SOCKET_IFNAME": "^=eth"}, ALL, ETH1),
        ({"NCCL_SOCKET_IFNAME": "^"}, ALL, ETH1),
        ({"COLLC_NET": "^eth1"}, ALL, ETH),
        ({"COLLC_NET": "tcp:=eth0"}, ALL, ETH),
        ({"NCCL_SOCKET_IFNAME": "eth0", "COLLC_SOCKET_IFNAME": "docker"}, ALL, DOCKER),
        ({"COLLC_SOCKET_IFNAME": "docker", "COLLC_NET": "eth0"}, ALL, ETH),
        ({"COLLC_SOCKET_IFNAME": "docker", "COLLC_NET": "tcp:eth0"}, ALL, ETH),
        ({"COLLC_SOCKET_IFNAME": "docker", "COLLC_NET": "tcp:"}, ALL, DOCKER),
        ({"COLLC_SOCKET_IFNAME": "", "COLLC_NET": ""}, ALL, ETH1),
    ],
)
def test_which_interface(environment: dict[str, str], there: list[Interface], chosen: Interface | None) -> None:
    found = choose(environment, there)
    assert found.interface == chosen
    assert found.why


@pytest.mark.parametrize(
    ("environment", "kind", "why"),
    [
        ({"COLLC_NET": "eth9"}, RunError, "no network interface called eth9 is up"),
        ({"NCCL_SOCKET_IFNAME": "ib"}, RunError, "no network interface called ib is up"),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, RunError, "no network interface called =eth is up"),
        ({"NCCL_SOCKET_IFNAME": "^lo,docker,eth"}, RunError, "no network interface that passes .lo,docker,eth is up"),
        ({"COLLC_NET": "verbs:eth0"}, UsageError, "no engine 'verbs'"),
        ({"COLLC_NET": "ucx:eth0,eth1"}, UsageError, "names several interfaces"),
        ({"COLLC_NET": ",".join(f"eth{i}" for i in range(17))}, UsageError, "names several interfaces"),
    ],
)
def test_what_is_refused(environment: dict[str, str], kind: type[CollcError], why: str) -> None:
    with pytest.raises(kind, match=why):
        choose(environment, ALL)


@pytest.mark.parametrize(
    ("named", "rails"),
    [
        ("eth0,eth1", [ETH, ETH1]),
        ("tcp:eth1,eth0", [ETH1, ETH]),
        ("=eth0,eth1", [ETH, ETH1]),
        ("^docker,eth1", [ETH]),
        ("eth0", [ETH]),
        ("", []),
    ],
)
def test_which_rails(named: str, rails: list[Interface]) -> None:
    assert choose_rails({"COLLC_NET": named}, ALL) == rails


@pytest.mark.parametrize(
    ("named", "kind", "why"),
    [
        ("eth0,eth9", RunError, "no network interface called eth9 is up"),
        ("=eth0,eth", RunError, "no network interface called =eth is up"),
        ("eth0,=eth0", UsageError, "names the interface eth0 twice"),
    ],
)
def test_rails_that_are_refused(named: str, kind: type[CollcError], why: str) -> None:
    with pytest.raises(kind, match=why):
        choose_rails({"COLLC_NET": named}, ALL)


def test_the_kernel_lists_the_loopback() -> None:
    assert LO in interfaces()


@pytest.mark.parametrize(
    "environment",
    [
        {"COLLC_SOCKET_IFNAME": ""},
        pytest.param({"COLLC_SOCKET_IFNAME": "", "NCCL_SOCKET_IFNAME": "=lo"}, marks=pytest.mark.slow),
        pytest.param({"COLLC_SOCKET_IFNAME": "lo"}, marks=pytest.mark.slow),
        pytest.param({"COLLC_SOCKET_IFNAME": "", "COLLC_NET": "tcp:lo"}, marks=pytest.mark.slow),
        pytest.param({"COLLC_SOCKET_IFNAME": "", "NCCL_SOCKET_IFNAME": "^lo"}, marks=pytest.mark.slow),
        pytest.param({"COLLC_SOCKET_IFNAME": "", "NCCL_SOCKET_IFNAME": "=nothing,lo"}, marks=pytest.mark.slow),
        pytest.param({"COLLC_SOCKET_IFNAME": "^lo,nothing", "NCCL_SOCKET_IFNAME": ""}, marks=pytest.mark.slow),
    ],
)
def test_the_runtime_takes_the_same(environment: dict[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    told = {"COLLC_NET": "", "NCCL_SOCKET_IFNAME": "", **environment}
    expected = choose(told, interfaces()).interface
    assert expected is not None
    team = Ranks(library("2+2"), 4, {**told, "COLLC_DEBUG": "INFO"}, hosts="aabb")
    try:
        team.init()
    finally:
        team.close()
    waiting = re.findall(r"tcp: waiting for other machines on (\S+) port \d+", capfd.readouterr().err)
    assert waiting == [expected.address.partition("%")[0]] * 2
